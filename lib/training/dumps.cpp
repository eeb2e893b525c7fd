#include "lib/training/dumps.h"

#include <filesystem>
#include <map>
#include <vector>

#include "lib/checkpoint/hugging_face.h"
#include "lib/checkpoint/safetensors.h"

namespace quintet::training {
namespace {

std::vector<checkpoint::TensorEntry> entries(const parallel::ParameterStore& store) {
  std::vector<checkpoint::TensorEntry> result;
  for (const parallel::Parameter& parameter : store.parameters()) {
    const Shape& shape = parameter.spec().shape;
    std::vector<int64_t> sizes;
    for (int i = 0; i < shape.rank(); ++i) sizes.push_back(shape[i]);
    result.push_back({.name = parameter.name(), .dtype = store.dtype(), .shape = std::move(sizes)});
  }
  return result;
}

// A copy of device memory on the host.
class HostCopy {
 public:
  explicit HostCopy(device::Device& device) : device_(device) {}

  Tensor of(Tensor tensor) {
    bytes_.resize(static_cast<size_t>(tensor.bytes()));
    const Tensor host(bytes_.data(), tensor.dtype(), tensor.shape());
    device_.copy(tensor, host);
    return host;
  }

 private:
  device::Device& device_;
  std::vector<std::byte> bytes_;
};

}  // namespace

void dump_weights(pipeline::Engine& engine, const config::Config& config, const std::string& folder, int64_t step) {
  if (engine.rank() != 0) return;
  const parallel::ParameterStore& store = engine.parameters();
  std::map<std::string, Tensor> weights;
  for (const parallel::Parameter& parameter : store.parameters()) weights[parameter.name()] = parameter.weight();
  HostCopy copy(engine.device());
  checkpoint::write_hugging_face(fmt::format("{}/weights/step_{:08}", folder, step), config.model, entries(store),
                                 [&](const checkpoint::TensorEntry& entry) { return copy.of(weights.at(entry.name)); });
}

void dump_gradients(pipeline::Engine& engine, const std::string& folder, int64_t step) {
  engine.optimizer().gather_gradients();
  if (engine.rank() != 0) return;
  const parallel::ParameterStore& store = engine.parameters();
  const std::filesystem::path gradients = folder + "/gradients";
  std::filesystem::create_directories(gradients);
  checkpoint::SafetensorsWriter writer(gradients / fmt::format("step_{:08}.safetensors", step), entries(store));
  HostCopy copy(engine.device());
  for (const parallel::Parameter& parameter : store.parameters()) {
    const Tensor gradient = copy.of(parameter.gradient());
    writer.append(parameter.name(),
                  {static_cast<const std::byte*>(gradient.data()), static_cast<size_t>(gradient.bytes())});
  }
  writer.finish();
}

}  // namespace quintet::training
