// AdamW with decoupled weight decay (Loshchilov and Hutter 2019).
#pragma once

#include <cstdint>

namespace quintet::kernels::cpu {

struct AdamwArgs {
  double learning_rate = 0, beta1 = 0, beta2 = 0, epsilon = 0, weight_decay = 0;
  double gradient_scale = 1;
  int64_t update = 1;  // count of applied updates, this one included
  int threads = 1;
};

// g = gradient * gradient_scale; m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2;
// w -= learning_rate (m_hat / (sqrt(v_hat) + epsilon) + weight_decay w). Every element is rounded the same way wherever
// it lies in a span: a span may be cut anywhere. w is the master; a weight of the same type is the master itself, one
// of bf16 becomes its rounding.
template <typename T, typename G, typename W>
void adamw(const AdamwArgs& args, int64_t elements, const G* gradient, T* master, T* first_moment, T* second_moment,
           W* weight);

}  // namespace quintet::kernels::cpu
