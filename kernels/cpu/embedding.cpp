#include "kernels/cpu/embedding.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/storage.h"
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

// A token and the row that its gradient goes to.
struct RowToken {
  int64_t row, t;
};

// gradient[row] += d_output[t] for every pair, in ascending t as they come. All tokens of a row meet before it is
// rounded.
template <typename T, typename G>
void add_rows(int threads, std::vector<RowToken> pairs, int64_t width, const T* d_output, G* gradient) {
  using A = Arithmetic<T>;
  std::stable_sort(pairs.begin(), pairs.end(), [](const RowToken& a, const RowToken& b) { return a.row < b.row; });
  for_columns(threads, std::ssize(pairs), width, [&](int64_t begin, int64_t end) {
    std::vector<A> sums(static_cast<size_t>(end - begin));
    A* sum = sums.data();
    for (size_t i = 0; i < pairs.size();) {
      const int64_t row = pairs[i].row, columns = end - begin;
      G* to = gradient + row * width + begin;
#pragma omp simd
      for (int64_t c = 0; c < columns; ++c) sum[c] = static_cast<A>(widen(to[c]));
      for (; i < pairs.size() && pairs[i].row == row; ++i) {
        const T* from = d_output + pairs[i].t * width + begin;
#pragma omp simd
        for (int64_t c = 0; c < columns; ++c) sum[c] += widen(from[c]);
      }
#pragma omp simd
      for (int64_t c = 0; c < columns; ++c) to[c] = round_to<G>(sum[c]);
    }
  });
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
        std::fill_n(to, width, T{});
      }
      if (position_table == nullptr) continue;
      const T* added = position_table + position_row(args, t) * width;
#pragma omp simd
      for (int64_t c = 0; c < width; ++c) to[c] = round_to<T>(widen(to[c]) + widen(added[c]));
    }
  });
}

template <typename T, typename G>
void embedding_backward(const EmbeddingArgs<T>& args, const T* d_output, G* table_gradient, G* position_gradient) {
  std::vector<RowToken> pairs;
  for (int64_t t = 0; t < args.tokens_count; ++t) {
    if (const int64_t row = table_row(args, t); row >= 0) pairs.push_back({row, t});
  }
  add_rows(args.threads, std::move(pairs), args.width, d_output, table_gradient);
  if (position_gradient == nullptr) return;
  std::vector<RowToken> positions;
  for (int64_t t = 0; t < args.tokens_count; ++t) positions.push_back({position_row(args, t), t});
  add_rows(args.threads, std::move(positions), args.width, d_output, position_gradient);
}

#define QUINTET_INSTANTIATE(T)                                                                         \
  template void embedding_forward(const EmbeddingArgs<T>&, const T*, const T*, T*);                    \
  template void embedding_backward(const EmbeddingArgs<T>&, const T*, Arithmetic<T>*, Arithmetic<T>*); \
  template void embedding_backward(const EmbeddingArgs<T>&, const T*, bfloat16*, bfloat16*);
QUINTET_INSTANTIATE(bfloat16)
QUINTET_INSTANTIATE(float)
QUINTET_INSTANTIATE(double)
#undef QUINTET_INSTANTIATE

}  // namespace quintet::kernels::cpu
