// A bias added to rows, and its gradient: the sum over rows. T: float, bfloat16.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace quintet::kernels::cuda {

// values[t, c] += bias[c].
template <typename T>
void add_bias(int64_t rows, int64_t width, const T* bias, T* values, cudaStream_t stream);

// gradient[c] += sum over t of values[t, c], added in fp32. `workspace`: bias_gradient_workspace(rows, width) bytes. G:
// float, or bfloat16 with T.
int64_t bias_gradient_workspace(int64_t rows, int64_t width);
template <typename T, typename G>
void bias_gradient(int64_t rows, int64_t width, const T* values, G* gradient, void* workspace, cudaStream_t stream);

}  // namespace quintet::kernels::cuda
