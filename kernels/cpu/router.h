// The router of a mixture of experts (Shazeer et al. 2017; Fedus et al. 2021): a softmax over experts, the choice of a
// few, their weights, and the way back. T is the type of arithmetic.
#pragma once

#include <cstdint>

#include "lib/base/exact_sum.h"

namespace quintet::kernels::cpu {

// Which sequence and position a row stands for: identity = ordinal * sequence_length + position, the sequences of a
// microbatch being numbered from first_ordinal.
struct RowIdentities {
  const int64_t* identities = nullptr;
  int64_t sequence_length = 1;
  int64_t first_ordinal = 0;

  int64_t position(int64_t row) const { return identities[row] % sequence_length; }
  int64_t sequence(int64_t row) const { return identities[row] / sequence_length - first_ordinal; }
};

struct RouterShape {
  int64_t rows = 0, experts = 0, top_k = 0;
  bool normalize = false;  // the chosen experts' weights are scaled to the sum 1
  RowIdentities rows_of;
  int threads = 1;
};

// logits [rows, experts] to probabilities [rows, experts] and log_sum_exp [rows]; chosen [rows, top_k], the experts of
// largest probability + selection_bias (which may be null), equal ones in ascending order, and their weights. With
// round_robin, choice j at position p is expert (p * top_k + j) mod experts instead.
template <typename T>
void router_forward(const RouterShape& shape, const T* logits, const T* selection_bias, bool round_robin,
                    T* probabilities, int32_t* chosen, T* weights, T* log_sum_exp);

// What backward gets: the gradient of the weights, and the scales of the two losses of its own, which are
// balance_scale * sum of probabilities[t, e] * loads[sequence of t, e] and z_scale * sum of log_sum_exp[t]^2.
template <typename T>
struct RouterGradient {
  const T* probabilities = nullptr;
  const int32_t* chosen = nullptr;
  const T* weights = nullptr;
  const T* log_sum_exp = nullptr;
  const T* d_weights = nullptr;  // [rows, top_k]
  const T* loads = nullptr;      // [sequences, experts]
  double balance_scale = 0, z_scale = 0;
  T* d_logits = nullptr;  // [rows, experts], written
};
template <typename T>
void router_backward(const RouterShape& shape, const RouterGradient<T>& gradient);

// Adds the two losses, without their scales, to `balance` and `z`.
template <typename T>
void router_losses(const RouterShape& shape, const T* probabilities, const T* loads, const T* log_sum_exp,
                   ExactSum& balance, ExactSum& z);

}  // namespace quintet::kernels::cpu
