// Table look-up by token plus, where there is a position table, by position; and its transpose. T: float, bfloat16.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace quintet::kernels::cuda {

// Rows [vocabulary_start, vocabulary_start + table_rows) of the vocabulary lie in this table; other tokens read as zero
// and get no gradient.
struct EmbeddingArgs {
  int64_t tokens_count = 0, width = 0;  // T, H
  const int32_t* tokens = nullptr;      // [T]
  int64_t vocabulary_start = 0, table_rows = 0;
  const int32_t* positions = nullptr;  // [T], with a position table; each below position_rows
  int64_t position_rows = 0;
};

// output[t] = table[tokens[t] - vocabulary_start] + position_table[positions[t]]; position_table may be null.
template <typename T>
void embedding_forward(const EmbeddingArgs& args, const T* table, const T* position_table, T* output,
                       cudaStream_t stream);

// table_gradient[tokens[t] - vocabulary_start] += d_output[t], the same for positions: a row's sum is taken in fp32, in
// ascending t, and rounded once. position_gradient may be null. G: float, or bfloat16 with T.
template <typename T, typename G>
void embedding_backward(const EmbeddingArgs& args, const T* d_output, G* table_gradient, G* position_gradient,
                        cudaStream_t stream);

}  // namespace quintet::kernels::cuda
