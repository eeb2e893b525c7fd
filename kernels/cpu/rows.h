// How row-wise and elementwise kernels are cut for parallel_for: pieces of about 16 Ki elements, so that small operands
// stay on one thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lib/base/parallel.h"

namespace quintet::kernels::cpu {

inline constexpr int64_t kPieceElements = 16384;

// f(begin, end) over rows of `width` elements.
template <typename Function>
void for_rows(int threads, int64_t rows, int64_t width, Function&& f) {
  parallel_for(threads, rows, std::max<int64_t>(1, kPieceElements / std::max<int64_t>(width, 1)), f);
}

// f(begin, end) over single elements.
template <typename Function>
void for_elements(int threads, int64_t elements, Function&& f) {
  parallel_for(threads, elements, kPieceElements, f);
}

// f(begin, end) over the columns of a [rows, columns] matrix, in multiples of 64 columns but at the end: each thread
// walks down all rows of its columns in ascending order, so that sums over rows do not depend on the threads.
template <typename Function>
void for_columns(int threads, int64_t rows, int64_t columns, Function&& f) {
  const int64_t wanted = kPieceElements / std::max<int64_t>(rows, 1);
  parallel_for(threads, columns, std::max<int64_t>(64, wanted / 64 * 64), f);
}

}  // namespace quintet::kernels::cpu
