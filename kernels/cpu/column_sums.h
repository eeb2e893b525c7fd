// Sums over rows, kept apart by column: gradients of biases and of norm scales.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/storage.h"

namespace quintet::kernels::cpu {

// gradient[c] += sum over t of term(t, c) for c < columns. Rows are added in blocks of 64 first, so that rounding
// errors grow with rows / 64; the order depends on the shape alone. Sums are of type A until they meet the gradient.
template <typename A, typename G, typename Term>
void add_column_sums(int threads, int64_t rows, int64_t columns, G* gradient, Term&& term) {
  constexpr int64_t kTile = 512, kRowBlock = 64;
  for_columns(threads, rows, columns, [&](int64_t begin, int64_t end) {
    std::array<A, kTile> total, partial;
    for (int64_t first = begin; first < end; first += kTile) {
      const int64_t width = std::min(kTile, end - first);
      std::fill_n(total.begin(), width, A{0});
      for (int64_t block = 0; block < rows; block += kRowBlock) {
        std::fill_n(partial.begin(), width, A{0});
        for (int64_t t = block; t < std::min(rows, block + kRowBlock); ++t) {
          A* sums = partial.data();
#pragma omp simd
          for (int64_t c = 0; c < width; ++c) sums[c] += term(t, first + c);
        }
#pragma omp simd
        for (int64_t c = 0; c < width; ++c) total[c] += partial[c];
      }
#pragma omp simd
      for (int64_t c = 0; c < width; ++c) {
        gradient[first + c] = round_to<G>(static_cast<A>(widen(gradient[first + c])) + total[c]);
      }
    }
  });
}

// gradient[c] += sum over t of values[t, c], [rows, columns].
template <typename T, typename G>
void column_sums(int threads, const T* values, int64_t rows, int64_t columns, G* gradient);

}  // namespace quintet::kernels::cpu
