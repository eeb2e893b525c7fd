// Layer norm (Ba et al. 2016) and root-mean-square norm (Zhang and Sennrich 2019) with the residual added first.
// Tensors are [rows, width] but where said, width at most kMaxNormWidth, or kMaxUnevenNormWidth where rows are no
// multiple of 16 bytes; statistics and sums are fp32. T: float, bfloat16.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/dropout.h"

namespace quintet::kernels::cuda {

inline constexpr int64_t kMaxNormWidth = 16384, kMaxUnevenNormWidth = 8192;

enum class Norm : uint8_t { layer, root_mean_square };

// input = residual + dropout(branch), rounded to T, or the residual where branch is null;
// output = (input - mean) * inverse_deviation * weight + bias, with mean 0 for the root-mean-square norm.
template <typename T>
struct AddNormForwardArgs {
  Norm norm = Norm::layer;
  int64_t rows = 0, width = 0;
  double epsilon = 0;
  const T* residual = nullptr;
  const T* branch = nullptr;
  DropoutMask dropout;
  T* residual_output = nullptr;  // with a branch
  const T* weight = nullptr;     // [width]
  const T* bias = nullptr;       // [width], or null
  T* output = nullptr;
  float* mean = nullptr;               // [rows], layer norm only
  float* inverse_deviation = nullptr;  // [rows]
};
template <typename T>
void add_norm_forward(const AddNormForwardArgs<T>& args, cudaStream_t stream);

// d_input = gradient through the norm, added with `accumulate`. d_input may be d_output.
template <typename T>
struct NormBackwardArgs {
  Norm norm = Norm::layer;
  int64_t rows = 0, width = 0;
  const T* input = nullptr;
  const T* weight = nullptr;                 // [width]
  const float* mean = nullptr;               // [rows], layer norm only
  const float* inverse_deviation = nullptr;  // [rows]
  const T* d_output = nullptr;
  T* d_input = nullptr;
  bool accumulate = false;
};
template <typename T>
void norm_backward_input(const NormBackwardArgs<T>& args, cudaStream_t stream);

// weight_gradient[c] += sum over rows of d_output * normalised input, bias_gradient[c] += sum of d_output (if not
// null). `workspace`: norm_backward_workspace(rows, width) bytes. G: float, or bfloat16 with T.
int64_t norm_backward_workspace(int64_t rows, int64_t width);
template <typename T, typename G>
void norm_backward_parameters(const NormBackwardArgs<T>& args, G* weight_gradient, G* bias_gradient, void* workspace,
                              cudaStream_t stream);

}  // namespace quintet::kernels::cuda
