// Activation functions over contiguous elements, alone and behind a bias, and the gated one. In fp32 values are within
// an absolute 2e-7 of max(1, |x|).
#pragma once

#include <cstdint>

#include "kernels/cpu/storage.h"

namespace quintet::kernels::cpu {

// gelu: the tanh form (Hendrycks and Gimpel 2016), x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)).
// gelu_exact: x Phi(x). relu_squared: max(x, 0)^2.
enum class ActivationKind : uint8_t { gelu, gelu_exact, relu_squared };

// pre_activation[t, c] += bias[c] in place, where bias is not null; output = activation(pre_activation). [rows, width]
template <typename T>
void bias_activation_forward(int threads, ActivationKind kind, int64_t rows, int64_t width, const T* bias,
                             T* pre_activation, T* output);

// values[t, c] += bias[c].
template <typename T>
void add_bias(int threads, int64_t rows, int64_t width, const T* bias, T* values);

// d_input = d_output * activation'(pre_activation); d_output is not rounded yet, and may be d_input.
template <typename T>
void activation_backward(int threads, ActivationKind kind, int64_t elements, const T* pre_activation,
                         const Arithmetic<T>* d_output, T* d_input);

// output = silu(gate) * up, silu(x) = x sigmoid(x) (Shazeer 2020).
template <typename T>
void swiglu_forward(int threads, int64_t elements, const T* gate, const T* up, T* output);
// d_gate and d_up may be gate, up or d_output.
template <typename T>
void swiglu_backward(int threads, int64_t elements, const T* gate, const T* up, const T* d_output, T* d_gate, T* d_up);

}  // namespace quintet::kernels::cpu
