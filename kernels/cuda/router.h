// The router of a mixture of experts (Shazeer et al. 2017; Fedus et al. 2021): a softmax over experts, the choice of a
// few, their weights, and the way back. All in fp32.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace quintet::kernels::cuda {

// Which sequence and position a row stands for: identity = ordinal * sequence_length + position, the sequences of a
// microbatch being numbered from first_ordinal.
struct RowIdentities {
  const int64_t* identities = nullptr;
  int64_t sequence_length = 1;
  int64_t first_ordinal = 0;
};

struct RouterShape {
  int64_t rows = 0, experts = 0, top_k = 0;
  bool normalize = false;  // the chosen experts' weights are scaled to the sum 1
  RowIdentities rows_of;
};

// logits [rows, experts] to probabilities [rows, experts] and log_sum_exp [rows]; chosen [rows, top_k], the experts of
// largest probability + selection_bias (which may be null), equal ones in ascending order, NaN as the smallest, and
// their weights. With round_robin, choice j at position p is expert (p * top_k + j) mod experts instead.
void router_forward(const RouterShape& shape, const float* logits, const float* selection_bias, bool round_robin,
                    float* probabilities, int32_t* chosen, float* weights, float* log_sum_exp, cudaStream_t stream);

// What backward gets: the gradient of the weights, and the scales of the two losses of its own, which are
// balance_scale * sum of probabilities[t, e] * loads[sequence of t, e] and z_scale * sum of log_sum_exp[t]^2.
struct RouterGradient {
  const float* probabilities = nullptr;
  const int32_t* chosen = nullptr;
  const float* weights = nullptr;
  const float* log_sum_exp = nullptr;
  const float* d_weights = nullptr;  // [rows, top_k]
  const float* loads = nullptr;      // [sequences, experts]
  double balance_scale = 0, z_scale = 0;
  float* d_logits = nullptr;  // [rows, experts], written
};
void router_backward(const RouterShape& shape, const RouterGradient& gradient, cudaStream_t stream);

// What each row adds to the two losses, without their scales: of_rows [2, rows], in fp64, so that whoever adds rows
// exactly gets the same sums however they were cut.
void router_losses(const RouterShape& shape, const float* probabilities, const float* loads, const float* log_sum_exp,
                   double* of_rows, cudaStream_t stream);

}  // namespace quintet::kernels::cuda
