// Full weights and gradients of chosen steps, for people who compare runs.
#pragma once

#include <cstdint>
#include <string>

#include "lib/config/config.h"
#include "lib/pipeline/engine.h"

namespace quintet::training {

// weights/step_00000000/ in run folder `folder`: a Hugging Face model of the weights after `step` (0: initial). Every
// rank calls it; rank 0 writes.
void dump_weights(pipeline::Engine& engine, const config::Config& config, const std::string& folder, int64_t step);

// gradients/step_00000001.safetensors: the gradient of the whole batch before clipping, under the parameters' own
// names. Called between forward_backward and update, by every rank; rank 0 writes.
void dump_gradients(pipeline::Engine& engine, const std::string& folder, int64_t step);

}  // namespace quintet::training
