// Rows of a matrix moved by index: to experts, and back as weighted sums.
#pragma once

#include <cstdint>

#include "kernels/cpu/storage.h"

namespace quintet::kernels::cpu {

constexpr int32_t kNoRow = -1;

// output[i] = input[index[i]], zeros for kNoRow; rows of `width` elements, i < rows.
template <typename T>
void gather_rows(int threads, int64_t rows, int64_t width, const T* input, const int32_t* index, T* output);

struct CombineShape {
  int64_t rows = 0, picks = 0, width = 0;
  int threads = 1;
};

// output[t] = addend[t] + sum over j, ascending, of weights[t, j] * input[index[t, j]], rounded once; kNoRow adds
// nothing. index [rows, picks]; weights may be null (1), and so may addend (0).
template <typename T>
void combine_rows(const CombineShape& shape, const T* input, const int32_t* index, const Arithmetic<T>* weights,
                  const Arithmetic<T>* addend, T* output);

// d_input[index[t, j]] = weights[t, j] * d_output[t], where each row occurs once at most in index; d_weights[t, j] =
// d_output[t] . input[index[t, j]], 0 for kNoRow.
template <typename T>
void combine_rows_backward(const CombineShape& shape, const T* input, const int32_t* index,
                           const Arithmetic<T>* weights, const T* d_output, T* d_input, Arithmetic<T>* d_weights);

}  // namespace quintet::kernels::cpu
