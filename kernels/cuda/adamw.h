// AdamW with decoupled weight decay (Loshchilov and Hutter 2019) over a list of spans.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <span>

#include "lib/base/dtype.h"

namespace quintet::kernels::cuda {

struct AdamwArgs {
  double learning_rate = 0, beta1 = 0, beta2 = 0, epsilon = 0, weight_decay = 0;
  double gradient_scale = 1;
  int64_t update = 1;  // count of applied updates, this one included
};

// A contiguous run of a parameter: fp32 master weights and moments, gradients of G.
template <typename G>
struct AdamwSpan {
  int64_t elements = 0;
  const G* gradient = nullptr;
  float* weight = nullptr;
  float* first_moment = nullptr;
  float* second_moment = nullptr;
  bfloat16* rounded_weight = nullptr;  // written where not null: the weight that bf16 layers compute with
  bool decay = false;                  // weight decay applies
};

// g = gradient * gradient_scale; m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2;
// w -= learning_rate (m_hat / (sqrt(v_hat) + epsilon) + weight_decay w). Every element is rounded the same way wherever
// it lies in a span: a span may be cut anywhere. G: float, bfloat16.
template <typename G>
void adamw(const AdamwArgs& args, std::span<const AdamwSpan<G>> spans, cudaStream_t stream);

}  // namespace quintet::kernels::cuda
