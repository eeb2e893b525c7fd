// Rows of a matrix moved by index: to experts, and back as weighted sums. T: float, bfloat16; weights, their gradients
// and addends are fp32.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace quintet::kernels::cuda {

inline constexpr int32_t kNoRow = -1;

// output[i] = input[index[i]], zeros for kNoRow; rows of `width` elements, i < rows.
template <typename T>
void gather_rows(int64_t rows, int64_t width, const T* input, const int32_t* index, T* output, cudaStream_t stream);

struct CombineShape {
  int64_t rows = 0, picks = 0, width = 0;
};

// output[t] = addend[t] + sum over j, ascending, of weights[t, j] * input[index[t, j]], rounded once; kNoRow adds
// nothing. index [rows, picks]; weights may be null (1), and so may addend (0).
template <typename T>
void combine_rows(const CombineShape& shape, const T* input, const int32_t* index, const float* weights,
                  const float* addend, T* output, cudaStream_t stream);

// d_input[index[t, j]] = weights[t, j] * d_output[t], where each row occurs once at most in index; d_weights[t, j] =
// d_output[t] . input[index[t, j]], 0 for kNoRow. d_input may be input.
template <typename T>
void combine_rows_backward(const CombineShape& shape, const T* input, const int32_t* index, const float* weights,
                           const T* d_output, T* d_input, float* d_weights, cudaStream_t stream);

}  // namespace quintet::kernels::cuda
