// Table look-up by token plus, where there is a position table, by position; and its transpose.
#pragma once

#include <cstdint>

namespace quintet::kernels::cpu {

// Rows [vocabulary_start, vocabulary_start + table_rows) of the vocabulary lie in this table; other tokens read as zero
// and get no gradient.
template <typename T>
struct EmbeddingArgs {
  int64_t tokens_count = 0, width = 0;  // T, H
  const int32_t* tokens = nullptr;      // [T]
  int64_t vocabulary_start = 0, table_rows = 0;
  const int32_t* positions = nullptr;  // [T], with a position table
  int64_t position_rows = 0;
  int threads = 1;
};

// output[t] = table[tokens[t] - vocabulary_start] + position_table[positions[t]]; position_table may be null.
template <typename T>
void embedding_forward(const EmbeddingArgs<T>& args, const T* table, const T* position_table, T* output);

// table_gradient[tokens[t] - vocabulary_start] += d_output[t], the same for positions; in ascending t for every
// element, with one rounding to G after the last. position_gradient may be null.
template <typename T, typename G>
void embedding_backward(const EmbeddingArgs<T>& args, const T* d_output, G* table_gradient, G* position_gradient);

}  // namespace quintet::kernels::cpu
