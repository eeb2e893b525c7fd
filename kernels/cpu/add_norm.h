// Layer norm (Ba et al. 2016) and root-mean-square norm (Zhang and Sennrich 2019) with the residual added first.
// All tensors are [rows, width] but where said; statistics are kept in the type of arithmetic for backward. A row is
// summed in vector lanes, in an order that depends on its width alone.
#pragma once

#include <cstdint>

#include "kernels/cpu/dropout.h"
#include "kernels/cpu/storage.h"

namespace quintet::kernels::cpu {

enum class Norm : uint8_t { layer, root_mean_square };

// input = residual + dropout(branch), or the residual where branch is null;
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
  Arithmetic<T>* mean = nullptr;               // [rows], layer norm only
  Arithmetic<T>* inverse_deviation = nullptr;  // [rows]
  int threads = 1;
};
template <typename T>
void add_norm_forward(const AddNormForwardArgs<T>& args);

// d_input = gradient through the norm, added with `accumulate`. d_input may be d_output.
template <typename T>
struct NormBackwardArgs {
  Norm norm = Norm::layer;
  int64_t rows = 0, width = 0;
  const T* input = nullptr;
  const T* weight = nullptr;                         // [width]
  const Arithmetic<T>* mean = nullptr;               // [rows], layer norm only
  const Arithmetic<T>* inverse_deviation = nullptr;  // [rows]
  const T* d_output = nullptr;
  T* d_input = nullptr;
  bool accumulate = false;
  int threads = 1;
};
template <typename T>
void norm_backward_input(const NormBackwardArgs<T>& args);

// weight_gradient[c] += sum over rows of d_output * normalised input, bias_gradient[c] += sum of d_output (if not
// null); independent of threads.
template <typename T, typename G>
void norm_backward_parameters(const NormBackwardArgs<T>& args, G* weight_gradient, G* bias_gradient);

}  // namespace quintet::kernels::cpu
