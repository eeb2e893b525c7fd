// Activation functions over contiguous elements, alone and behind a bias. T: float, bfloat16; arithmetic is fp32.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace quintet::kernels::cuda {

// gelu: the tanh form (Hendrycks and Gimpel 2016), x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)).
// gelu_exact: x Phi(x). relu_squared: max(x, 0)^2.
enum class ActivationKind : uint8_t { gelu, gelu_exact, relu_squared };

// pre_activation[t, c] += bias[c] in place, where bias is not null; output = activation(pre_activation), of what was
// stored. [rows, width]
template <typename T>
void bias_activation_forward(ActivationKind kind, int64_t rows, int64_t width, const T* bias, T* pre_activation,
                             T* output, cudaStream_t stream);

// gradient[i] *= activation'(pre_activation[i]).
template <typename T>
void activation_backward(ActivationKind kind, int64_t elements, const T* pre_activation, T* gradient,
                         cudaStream_t stream);

}  // namespace quintet::kernels::cuda
