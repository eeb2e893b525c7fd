// Tiles of bf16 rows in shared memory, and their products on tensor cores (mma.m16n8k16, fp32 sums) as attention needs
// them. A tile is [rows, D]; units of 16 bytes are permuted within a row by the row, so that the eight rows that
// ldmatrix reads at once lie in different banks. A warp owns 16 * kStrips rows of one operand; its sums are
// sums[strip][n / 8][4] in the layout of multiply_accumulate. Include from .cu files.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention_mask.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/intrinsics.h"

namespace quintet::kernels::cuda {

// Element 8 * unit of a row.
template <int D>
__device__ __forceinline__ bfloat16* tile_unit(bfloat16* tile, int row, int unit) {
  static_assert(D % 32 == 0);
  const int permuted = unit ^ (D % 64 == 0 ? row & 7 : (row >> 1) & 3);
  return tile + row * D + permuted * 8;
}

// Starts the copy of rows [first, first + kRows) of a head's matrix; zeros where there are none, or beyond `dim`
// columns.
template <int D, int kRows, int kThreads>
__device__ __forceinline__ void start_tile(bfloat16* tile, const bfloat16* head, int64_t row_stride, int first,
                                           int rows, int dim) {
  constexpr int kUnits = D / 8;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kUnits; i += kThreads) {
    const int row = i / kUnits, unit = i % kUnits;
    const bool valid = first + row < rows && unit * 8 < dim;
    copy_async(tile_unit<D>(tile, row, unit), head + (valid ? (int64_t{first} + row) * row_stride + unit * 8 : 0),
               valid);
  }
}

// The lane's part of a left operand: rows [row, row + 16), columns [16 * step, +16).
template <int D>
__device__ __forceinline__ void load_left(uint32_t (&to)[4], bfloat16* tile, int row, int step) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  load_matrices(to, tile_unit<D>(tile, row + lane % 16, 2 * step + lane / 16));
}
// The same of the transposed tile: its rows are the tile's columns [8 * unit, +16), its columns the tile's rows [row,
// +16).
template <int D>
__device__ __forceinline__ void load_left_transposed(uint32_t (&to)[4], bfloat16* tile, int row, int unit) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  load_matrices_transposed(to, tile_unit<D>(tile, row + lane / 16 * 8 + lane % 8, unit + lane / 8 % 2));
}
// Of two right operands whose columns are the tile's rows [row, row + 8) and [row + 8, row + 16).
template <int D>
__device__ __forceinline__ void load_right_from_rows(uint32_t (&to)[4], bfloat16* tile, int row, int step) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  load_matrices(to, tile_unit<D>(tile, row + lane / 16 * 8 + lane % 8, 2 * step + lane / 8 % 2));
}
// Of two right operands whose rows are the tile's rows [row, row + 16) and whose columns are the tile's units `unit`,
// +1.
template <int D>
__device__ __forceinline__ void load_right(uint32_t (&to)[4], bfloat16* tile, int row, int unit) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  load_matrices_transposed(to, tile_unit<D>(tile, row + lane % 16, unit + lane / 16));
}

__device__ __forceinline__ void multiply_pair(float (&first)[4], float (&second)[4], const uint32_t (&left)[4],
                                              const uint32_t (&right)[4]) {
  const uint32_t low[2] = {right[0], right[1]}, high[2] = {right[2], right[3]};
  multiply_accumulate(first, left, low);
  multiply_accumulate(second, left, high);
}

// to = rows [row, row + 16 * kStrips) of `left` times all 8 * kTiles rows of `right`, transposed. kUnroll steps of 16
// columns lie side by side in the code: the more there are, the more addresses the compiler holds in registers.
template <int D, int kUnroll, int kStrips, int kTiles>
__device__ __forceinline__ void product_of_rows(float (&to)[kStrips][kTiles][4], bfloat16* left, int row,
                                                bfloat16* right) {
#pragma unroll
  for (int strip = 0; strip < kStrips; ++strip) {
#pragma unroll
    for (int i = 0; i < kTiles * 4; ++i) to[strip][i / 4][i % 4] = 0.0F;
  }
#pragma unroll(kUnroll)
  for (int step = 0; step < D / 16; ++step) {
    uint32_t a[kStrips][4];
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) load_left<D>(a[strip], left, row + 16 * strip, step);
#pragma unroll
    for (int tile = 0; tile < kTiles; tile += 2) {
      uint32_t b[4];
      load_right_from_rows<D>(b, right, 8 * tile, step);
#pragma unroll
      for (int strip = 0; strip < kStrips; ++strip) multiply_pair(to[strip][tile], to[strip][tile + 1], a[strip], b);
    }
  }
}

// sums += left times the tile's 16 * kSteps rows at columns [8 * unit, + 8 * kUnits). load_left(a, strip, step) gives
// rows [16 * strip, +16) and columns [16 * step, +16) of the warp's left operand.
template <int D, int kSteps, int kStrips, int kUnits, typename LoadLeft>
__device__ __forceinline__ void add_product(float (&sums)[kStrips][kUnits][4], LoadLeft&& load_left, bfloat16* tile,
                                            int unit) {
  static_assert(kUnits % 2 == 0);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    uint32_t a[kStrips][4];
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) load_left(a[strip], strip, step);
#pragma unroll
    for (int column = 0; column < kUnits; column += 2) {
      uint32_t b[4];
      load_right<D>(b, tile, 16 * step, unit + column);
#pragma unroll
      for (int strip = 0; strip < kStrips; ++strip) {
        multiply_pair(sums[strip][column], sums[strip][column + 1], a[strip], b);
      }
    }
  }
}

// sums += weights, rounded to bf16, times all 8 * kTiles rows of the tile.
template <int D, int kStrips, int kTiles>
__device__ __forceinline__ void add_weighted_rows(float (&sums)[kStrips][D / 8][4],
                                                  const float (&weights)[kStrips][kTiles][4], bfloat16* tile) {
  const auto round = [&](uint32_t(&a)[4], int strip, int step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&w)[4] = weights[strip][2 * step + i / 2];
      a[i] = to_bfloat16_pair(w[i % 2 * 2], w[i % 2 * 2 + 1]);
    }
  };
  add_product<D, kTiles / 2>(sums, round, tile, 0);
}

template <int kStrips, int kUnits>
__device__ __forceinline__ void scale_sums(float (&sums)[kStrips][kUnits][4], float factor) {
#pragma unroll
  for (int i = 0; i < kStrips * kUnits * 4; ++i) sums[i / (kUnits * 4)][i / 4 % kUnits][i % 4] *= factor;
}

// Two sums, rounded; with `there`, added to the pair that it points to.
__device__ __forceinline__ uint32_t round_pair(float low, float high, const bfloat16* there) {
  if (there != nullptr) {
    const uint32_t pair = *reinterpret_cast<const uint32_t*>(there);
    low += __uint_as_float(pair << 16);
    high += __uint_as_float(pair & 0xffff0000U);
  }
  return to_bfloat16_pair(low, high);
}

// Stores a warp's sums, rounded, as rows [first + row, ...) of a head's matrix, columns [8 * unit, + 8 * kUnits), with
// `accumulate` added to what is there. They go through the same rows of `tile`, which are the warp's own by now.
template <int D, int kStrips, int kUnits>
__device__ __forceinline__ void store_rows(float (&sums)[kStrips][kUnits][4], bfloat16* tile, int row, bfloat16* head,
                                           int64_t row_stride, int first, int rows, int dim, bool accumulate,
                                           int unit = 0) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int strip = 0; strip < kStrips; ++strip) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = row + 16 * strip + 8 * half + lane / 4;
      const bool inside = accumulate && first + r < rows;
      const bfloat16* at = head + (int64_t{first} + r) * row_stride + unit * 8 + 2 * (lane % 4);
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        *reinterpret_cast<uint32_t*>(tile_unit<D>(tile, r, unit + u) + 2 * (lane % 4)) =
            round_pair(sums[strip][u][2 * half], sums[strip][u][2 * half + 1],
                       inside && (unit + u) * 8 < dim ? at + u * 8 : nullptr);
      }
    }
  }
  __syncwarp();
#pragma unroll 4
  for (int i = lane; i < 16 * kStrips * kUnits; i += 32) {
    const int r = row + i / kUnits, u = unit + i % kUnits;
    if (first + r >= rows || u * 8 >= dim) continue;
    *reinterpret_cast<uint4*>(head + (int64_t{first} + r) * row_stride + u * 8) =
        *reinterpret_cast<const uint4*>(tile_unit<D>(tile, r, u));
  }
}

__device__ __forceinline__ void store_pair(float low, float high, bfloat16* to, bool accumulate) {
  *reinterpret_cast<uint32_t*>(to) = round_pair(low, high, accumulate ? to : nullptr);
}
__device__ __forceinline__ void store_pair(float low, float high, float* to, bool accumulate) {
  auto* pair = reinterpret_cast<float2*>(to);
  if (accumulate) {
    low += pair->x;
    high += pair->y;
  }
  *pair = make_float2(low, high);
}

// The same from registers, without a tile: in pieces of 16 bytes, or 32 of fp32.
template <typename T, int kStrips, int kUnits>
__device__ __forceinline__ void store_rows(const float (&sums)[kStrips][kUnits][4], int row, T* head,
                                           int64_t row_stride, int first, int rows, int dim, bool accumulate,
                                           int unit) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int i = 0; i < kStrips * 2; ++i) {
    const int r = first + row + 8 * i + lane / 4;
    if (r >= rows) continue;
    T* at = head + r * row_stride + unit * 8 + 2 * (lane % 4);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      if ((unit + u) * 8 >= dim) continue;
      const float(&sum)[4] = sums[i / 2][u];
      store_pair(sum[i % 2 * 2], sum[i % 2 * 2 + 1], at + u * 8, accumulate);
    }
  }
}
// fp32 needs no tile.
template <int D, int kStrips, int kUnits>
__device__ __forceinline__ void store_rows(float (&sums)[kStrips][kUnits][4], bfloat16*, int row, float* head,
                                           int64_t row_stride, int first, int rows, int dim, bool accumulate,
                                           int unit = 0) {
  store_rows(sums, row, head, row_stride, first, rows, dim, accumulate, unit);
}

template <typename T>
void check_tensor(const HeadTensor<T>& tensor, const char* name) {
  const bool aligned = in_packets(tensor.row_stride, tensor.data) && in_packets(tensor.head_stride, tensor.data) &&
                       in_packets(tensor.batch_stride, tensor.data);
  QUINTET_CHECK(aligned, "attention's {} has rows that do not begin at 16-byte boundaries", name);
}

// Calls function.template operator()<D>() with the smallest tile that holds heads of head_dim.
template <typename Function>
decltype(auto) visit_head_dim(int64_t head_dim, Function&& function) {
  QUINTET_CHECK(head_dim % 8 == 0, "attention in bf16 with heads of {}, which is no multiple of 8", head_dim);
  if (head_dim <= 32) return function.template operator()<32>();
  if (head_dim <= 64) return function.template operator()<64>();
  if (head_dim <= 96) return function.template operator()<96>();
  if (head_dim <= 128) return function.template operator()<128>();
  return function.template operator()<256>();
}

}  // namespace quintet::kernels::cuda
