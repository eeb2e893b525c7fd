#include "lib/training/dumps.h"

#include <filesystem>
#include <vector>

#include "lib/checkpoint/hugging_face.h"
#include "lib/checkpoint/safetensors.h"
#include "lib/checkpoint/whole_parameters.h"

namespace quintet::training {
namespace {

// Of weights, or of gradients.
std::vector<checkpoint::TensorEntry> entries(pipeline::Engine& engine, bool gradients) {
  const device::ElementTypes& types = engine.parameters().types();
  std::vector<checkpoint::TensorEntry> result;
  for (const pipeline::ModelParameter& parameter : engine.model_parameters()) {
    if (gradients && !parameter.spec.trained) continue;
    const DType dtype = gradients ? types.gradients : parameter.spec.trained ? types.compute : types.statistics;
    const Shape& shape = parameter.spec.shape;
    std::vector<int64_t> sizes;
    for (int i = 0; i < shape.rank(); ++i) sizes.push_back(shape[i]);
    result.push_back({.name = parameter.spec.name, .dtype = dtype, .shape = std::move(sizes)});
  }
  return result;
}

checkpoint::WholeParameters whole_parameters(pipeline::Engine& engine) {
  return {engine.model_parameters(), engine.communicator(), engine.device(), engine.parameters(), engine.optimizer()};
}

}  // namespace

void dump_weights(pipeline::Engine& engine, const config::Config& config, const std::string& folder, int64_t step) {
  const std::vector<checkpoint::TensorEntry> all = entries(engine, /*gradients=*/false);
  checkpoint::WholeParameters whole = whole_parameters(engine);
  const auto gather = [&](const checkpoint::TensorEntry& entry) {
    return whole.gather(entry.name, checkpoint::WholeParameters::Values::weights);
  };
  if (engine.rank() == 0) {
    checkpoint::write_hugging_face(fmt::format("{}/weights/step_{:08}", folder, step), config.model, all, gather);
    return;
  }
  for (const checkpoint::HuggingFaceTensor& tensor : checkpoint::hugging_face_tensors(config.model, all))
    for (const checkpoint::TensorEntry& source : tensor.sources) gather(source);
}

void dump_gradients(pipeline::Engine& engine, const std::string& folder, int64_t step) {
  const std::vector<checkpoint::TensorEntry> all = entries(engine, /*gradients=*/true);
  checkpoint::WholeParameters whole = whole_parameters(engine);
  const auto gather = [&](const checkpoint::TensorEntry& entry) {
    return whole.gather(entry.name, checkpoint::WholeParameters::Values::gradients);
  };
  if (engine.rank() != 0) {
    for (const checkpoint::TensorEntry& entry : all) gather(entry);
    return;
  }
  const std::filesystem::path gradients = folder + "/gradients";
  std::filesystem::create_directories(gradients);
  checkpoint::SafetensorsWriter writer(gradients / fmt::format("step_{:08}.safetensors", step), all);
  for (const checkpoint::TensorEntry& entry : all) {
    const Tensor gradient = gather(entry);
    writer.append(entry.name, {static_cast<const std::byte*>(gradient.data()), static_cast<size_t>(gradient.bytes())});
  }
  writer.finish();
}

}  // namespace quintet::training
