#include "kernels/cpu/embedding.h"

#include <algorithm>

#include "kernels/cpu/rows.h"
#include "lib/base/error.h"

namespace quintet::kernels::cpu {
namespace {

// The row of token t in this shard's table, or -1.
template <typename T>
int64_t table_row(const EmbeddingArgs<T>& args, int64_t t) {
  const int64_t row = args.tokens[t] - args.vocabulary_start;
  return row >= 0 && row < args.table_rows ? row : -1;
}

template <typename T>
int64_t position_row(const EmbeddingArgs<T>& args, int64_t t) {
  const int64_t row = args.positions[t];
  QUINTET_CHECK(row >= 0 && row < args.position_rows, "position {} in a table of {} rows", row, args.position_rows);
  return row;
}

template <typename T>
void add_to(T* to, const T* from, int64_t begin, int64_t end) {
#pragma omp simd
  for (int64_t c = begin; c < end; ++c) to[c] += from[c];
}

}  // namespace

template <typename T>
void embedding_forward(const EmbeddingArgs<T>& args, const T* table, const T* position_table, T* output) {
  const int64_t width = args.width;
  for_rows(args.threads, args.tokens_count, width, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      T* to = output + t * width;
      const int64_t row = table_row(args, t);
      if (row >= 0) {
        std::copy_n(table + row * width, width, to);
      } else {
        std::fill_n(to, width, T{0});
      }
      if (position_table != nullptr) add_to(to, position_table + position_row(args, t) * width, 0, width);
    }
  });
}

template <typename T>
void embedding_backward(const EmbeddingArgs<T>& args, const T* d_output, T* table_gradient, T* position_gradient) {
  const int64_t width = args.width;
  for_columns(args.threads, args.tokens_count, width, [&](int64_t begin, int64_t end) {
    for (int64_t t = 0; t < args.tokens_count; ++t) {
      const T* from = d_output + t * width;
      const int64_t row = table_row(args, t);
      if (row >= 0) add_to(table_gradient + row * width, from, begin, end);
      if (position_gradient != nullptr) add_to(position_gradient + position_row(args, t) * width, from, begin, end);
    }
  });
}

template void embedding_forward(const EmbeddingArgs<float>&, const float*, const float*, float*);
template void embedding_forward(const EmbeddingArgs<double>&, const double*, const double*, double*);
template void embedding_backward(const EmbeddingArgs<float>&, const float*, float*, float*);
template void embedding_backward(const EmbeddingArgs<double>&, const double*, double*, double*);

}  // namespace quintet::kernels::cpu
