// Which stage of a pipeline holds how many layers.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/config/config.h"

namespace quintet::pipeline {

// Forward work of a model's parts in FLOPs per token; a multiply-add counts 2, and attention looks at half of the
// positions, as it is causal. Norms and activations are left out: they are small beside the matrices.
struct ForwardCosts {
  double embedding;       // on the first stage
  double layer;           // with an MLP
  double attention_core;  // of any layer's: scores and their use, without projections
  double head;            // on the last stage
  double moe_layer;       // with a mixture of experts: what a token passes through
};
ForwardCosts forward_costs(const config::Model& model);

// Layers of each stage: the smallest cost of the slowest stage, what it computes again included, and of those splits
// the one whose stages are nearest to each other. Stages between the first and the last get at least one; those two,
// which have the embedding and the head, may get none. Needs layers >= stages.
std::vector<int64_t> split_layers(const config::Model& model, int64_t stages,
                                  config::Recompute recompute = config::Recompute::none);

// Layers of each stage of a run: as the config says, else split_layers().
std::vector<int64_t> layers_of_stages(const config::Config& config);

}  // namespace quintet::pipeline
