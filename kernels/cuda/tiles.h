// How elementwise kernels are cut: a thread takes one packet of N elements. Include from .cu files.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/launch.h"

namespace quintet::kernels::cuda {

inline constexpr unsigned kTileThreads = 256;

// Over elements without regard to rows: the first element of this thread's packet; beyond the end for some.
template <int N>
__device__ __forceinline__ int64_t first_element() {
  return (int64_t{blockIdx.x} * kTileThreads + threadIdx.x) * N;
}
inline int64_t tiles(int64_t elements, int per_thread) {
  return ceil_div(elements, int64_t{kTileThreads} * per_thread);
}

// Over rows of `width` elements: a block lies within one row, so that no thread divides to find its column.
struct RowTiles {
  unsigned threads, per_row;

  RowTiles(int64_t width, int per_thread) {
    const int64_t packets = ceil_div(std::max<int64_t>(width, 1), per_thread);
    threads = narrow<unsigned>(std::min<int64_t>(kTileThreads, round_up(packets, 32)));
    per_row = narrow<unsigned>(ceil_div(packets, int64_t{threads}));
  }
  int64_t blocks(int64_t rows) const { return rows * per_row; }
};
struct RowPlace {
  int64_t row, column;  // of the packet's first element; the column is beyond the end for some threads
};
template <int N>
__device__ __forceinline__ RowPlace place_in_rows(unsigned per_row) {
  const unsigned row = blockIdx.x / per_row, tile = blockIdx.x - row * per_row;
  return {row, (int64_t{tile} * blockDim.x + threadIdx.x) * N};
}

}  // namespace quintet::kernels::cuda
