// How much arithmetic a token strictly needs, for MFU and the speed of light.
#pragma once

#include <cstdint>
#include <span>

#include "lib/config/config.h"
#include "lib/pipeline/model_parameters.h"

namespace quintet::training {

// 6 * elements of the weight matrices that a token passes through (lookups excluded, the head included; top_k of the
// experts) + attention's
// causal half, 6 * layers * heads * head_dim * seq_length. Recomputation is not counted.
double flops_per_token(const config::Model& model, std::span<const pipeline::ModelParameter> parameters);
// Elements of all parameters.
int64_t parameter_elements(std::span<const pipeline::ModelParameter> parameters);

}  // namespace quintet::training
