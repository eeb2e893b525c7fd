#include "lib/pipeline/stage_split.h"

#include <algorithm>
#include <limits>

#include "lib/base/error.h"
#include "lib/model/routing.h"
#include "lib/pipeline/schedule.h"

namespace quintet::pipeline {

// In doubles, since products of the largest sizes do not fit 64 bits; up to 2^53 they are exact.
ForwardCosts forward_costs(const config::Model& model) {
  const auto hidden = static_cast<double>(model.hidden_size);
  const double queries = static_cast<double>(model.heads) * static_cast<double>(model.head_dim);
  const double keys = static_cast<double>(model.kv_heads) * static_cast<double>(model.head_dim);
  const double mlp_matrices = model.activation == config::Activation::swiglu ? 3 : 2;  // swiglu's third is the gate
  const double core = 2 * queries * static_cast<double>(model.seq_length);
  const double attention = 2 * hidden * (2 * queries + 2 * keys) + core;
  const double mlp = 2 * hidden * mlp_matrices * static_cast<double>(model.ffn_hidden_size);
  double experts = 0;
  if (model.moe) {
    const config::Moe& moe = *model.moe;
    const auto active = static_cast<double>(moe.top_k + moe.shared_experts);
    experts = 2 * hidden *
              (static_cast<double>(moe.experts) + active * mlp_matrices * static_cast<double>(moe.ffn_hidden_size));
  }
  const double tables = model.position == config::Position::learned ? 2 : 1;
  return {.embedding = tables * hidden,
          .layer = attention + mlp,
          .attention_core = core,
          .head = 2 * static_cast<double>(model.vocab_size) * hidden,
          .moe_layer = attention + experts};
}

namespace {

// A forward, and a backward of twice its work: gradients of inputs and of weights.
constexpr double kPasses = 3;

// What a layer of forward cost `layer` computes again.
double recomputed(const ForwardCosts& costs, double layer, config::Recompute recompute) {
  switch (recompute) {
    case config::Recompute::none: return 0;
    case config::Recompute::selective: return costs.attention_core;
    case config::Recompute::full: return layer;
  }
  QUINTET_CHECK(false, "recompute mode {}", static_cast<int>(recompute));
}

// The cost of training stage `stage` of `stages` with layers [first, end).
class StageCosts {
 public:
  StageCosts(const config::Model& model, int64_t stages, config::Recompute recompute)
      : costs_(forward_costs(model)), stages_(stages) {
    for (int64_t layer = 0; layer < model.layers; ++layer) {
      const double forward = model::is_moe_layer(model, layer) ? costs_.moe_layer : costs_.layer;
      before_.push_back(before_.back() + kPasses * forward + recomputed(costs_, forward, recompute));
    }
  }
  double operator()(int64_t stage, int64_t first, int64_t end) const {
    double cost = before_[static_cast<size_t>(end)] - before_[static_cast<size_t>(first)];
    if (stage == 0) cost += kPasses * costs_.embedding;
    if (stage + 1 == stages_) cost += kPasses * costs_.head;
    return cost;
  }

 private:
  ForwardCosts costs_;
  int64_t stages_;
  std::vector<double> before_ = {0};  // of layers, by their end
};

// The best way to cut layers into stages, from the last stage to the first: combine(cost of a stage, best of those
// after it) shall be small; where equal, the lower stage takes more layers.
template <typename Combine>
std::vector<int64_t> best_split(int64_t layers, int64_t stages, const StageCosts& costs, const Combine& combine) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  constexpr double kEqual = 1 + 1e-12;  // sums of the same costs in another order
  const auto columns = static_cast<size_t>(layers + 1);
  std::vector<double> best(static_cast<size_t>(stages + 1) * columns, kNone);
  std::vector<int64_t> taken(best.size(), 0);
  best.back() = 0;
  for (int64_t stage = stages - 1; stage >= 0; --stage)
    for (int64_t first = 0; first <= layers; ++first) {
      const size_t place = static_cast<size_t>(stage) * columns + static_cast<size_t>(first);
      for (int64_t end = first; end <= layers; ++end) {
        const double value =
            combine(costs(stage, first, end), best[place + columns + static_cast<size_t>(end - first)]);
        if (value == kNone || value > best[place] * kEqual) continue;
        best[place] = std::min(best[place], value);
        taken[place] = end - first;
      }
    }
  std::vector<int64_t> split;
  for (int64_t stage = 0, first = 0; stage < stages; first += split.back(), ++stage)
    split.push_back(taken[static_cast<size_t>(stage) * columns + static_cast<size_t>(first)]);
  return split;
}

double slowest_stage(const std::vector<int64_t>& split, const StageCosts& costs) {
  double slowest = 0;
  int64_t first = 0;
  for (size_t stage = 0; stage < split.size(); first += split[stage++])
    slowest = std::max(slowest, costs(static_cast<int64_t>(stage), first, first + split[stage]));
  return slowest;
}

}  // namespace

std::vector<int64_t> split_layers(const config::Model& model, int64_t stages, config::Recompute recompute) {
  QUINTET_CHECK(1 <= stages && stages <= model.layers, "{} layers on {} stages", model.layers, stages);
  const StageCosts costs(model, stages, recompute);
  const double bound = slowest_stage(
      best_split(model.layers, stages, costs, [](double cost, double later) { return std::max(cost, later); }), costs);
  // Small squares are shares near each other, so a stage without an embedding or a head gets a layer.
  return best_split(model.layers, stages, costs, [&](double cost, double later) {
    const double share = cost / bound;
    return share > 1 ? std::numeric_limits<double>::infinity() : share * share + later;
  });
}

std::vector<int64_t> layers_of_stages(const config::Config& config) {
  const config::Pipeline& pipeline = config.parallel.pipeline;
  if (pipeline.layers_per_stage) return *pipeline.layers_per_stage;
  return split_layers(config.model, placement_of(config).stages(), config.parallel.recompute);
}

}  // namespace quintet::pipeline
