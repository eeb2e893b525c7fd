// What the routers of a step did, added up over layers, microbatches and ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/base/exact_sum.h"
#include "lib/config/config.h"

namespace quintet::model {

// Whether layer `layer` (from 0) is a mixture of experts, and which of these it is (from 0).
bool is_moe_layer(const config::Model& config, int64_t layer);
int64_t moe_ordinal(const config::Model& config, int64_t layer);
int64_t moe_layers(const config::Model& config);

// What the router of one layer counted of one microbatch.
struct LayerRouting {
  int64_t ordinal = 0;         // among MoE layers
  ExactSum balance, z;         // the losses as device::RouterLosses adds them
  std::vector<int64_t> loads;  // [E], before drops
  int64_t dropped = 0;         // slots past an expert's capacity
  uint64_t digest = 0;         // order-free hash of all slots, before drops

  // Counts loads and digest. choices: [rows, K] of layer `layer`. identities: of the rows.
  void count(int64_t layer, std::span<const int32_t> choices, std::span<const int64_t> identities);
};

struct RoutingTotals {
  ExactSum balance, z;
  std::vector<int64_t> loads;  // [MoE layers of the model, E]
  int64_t dropped = 0;
  uint64_t digest = 0;

  // With `loads` of the right size, all zero.
  static RoutingTotals zero(const config::Model& config);

  void add(const LayerRouting& layer);

  // All numbers as integers that add element by element, and back.
  std::vector<int64_t> words();
  void set_words(std::span<const int64_t> words);
};

// What the sums come to, SPEC section 4.
struct RoutingFigures {
  double aux_loss = 0, z_loss = 0;  // unweighted
  double max_expert_load = 0;       // the busiest expert's slots over its layer's mean
};
RoutingFigures figures_of(const RoutingTotals& totals, const config::Config& config);

// Weights of the sums in the objective: their gradients' scales.
double balance_scale(const config::Config& config);
double z_scale(const config::Config& config);

}  // namespace quintet::model
