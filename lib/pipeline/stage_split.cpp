#include "lib/pipeline/stage_split.h"

#include "lib/base/error.h"

namespace quintet::pipeline {

// In doubles, since products of the largest sizes do not fit 64 bits; up to 2^53 they are exact.
ForwardCosts forward_costs(const config::Model& model) {
  QUINTET_CHECK(!model.moe, "layers of an MoE model differ in cost");
  const auto hidden = static_cast<double>(model.hidden_size);
  const double queries = static_cast<double>(model.heads) * static_cast<double>(model.head_dim);
  const double keys = static_cast<double>(model.kv_heads) * static_cast<double>(model.head_dim);
  const double mlp_matrices = model.activation == config::Activation::swiglu ? 3 : 2;  // swiglu's third is the gate
  const double elements = hidden * (2 * queries + 2 * keys + mlp_matrices * static_cast<double>(model.ffn_hidden_size));
  const double tables = model.position == config::Position::learned ? 2 : 1;
  return {.embedding = tables * hidden,
          .layer = 2 * elements + 2 * queries * static_cast<double>(model.seq_length),
          .head = 2 * static_cast<double>(model.vocab_size) * hidden};
}

// Each further layer goes where the cost after taking it is smallest. Layers cost the same, so this takes the smallest
// costs that any stage can reach, in ascending order: no other split has a smaller largest one. Between equals any
// fixed choice is as fast, and all ranks must make the same one: the lowest stage.
std::vector<int64_t> split_layers(const config::Model& model, int64_t stages) {
  QUINTET_CHECK(1 <= stages && stages <= model.layers, "{} layers on {} stages", model.layers, stages);
  const ForwardCosts costs = forward_costs(model);
  std::vector<int64_t> layers(static_cast<size_t>(stages), 1);
  const auto cost_with_one_more = [&](size_t stage) {
    double cost = static_cast<double>(layers[stage] + 1) * costs.layer;
    if (stage == 0) cost += costs.embedding;
    if (stage + 1 == layers.size()) cost += costs.head;
    return cost;
  };
  for (int64_t dealt = stages; dealt < model.layers; ++dealt) {
    size_t taker = 0;
    for (size_t stage = 1; stage < layers.size(); ++stage)
      if (cost_with_one_more(stage) < cost_with_one_more(taker)) taker = stage;
    ++layers[taker];
  }
  return layers;
}

std::vector<int64_t> layers_of_stages(const config::Config& config) {
  const config::Pipeline& pipeline = config.parallel.pipeline;
  if (pipeline.layers_per_stage) return *pipeline.layers_per_stage;
  return split_layers(config.model, config.mesh.pp * pipeline.virtual_stages);
}

}  // namespace quintet::pipeline
