// Sums over rows, kept apart by column, as a template over what is summed: gradients of biases and of norm scales. Two
// kernels, no atomics: blocks of 8 warps add up to kRowChunks runs of rows into a workspace, then one thread a column
// adds the runs in ascending order. The order depends on the shape alone. Include from .cu files.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "kernels/cuda/elements.h"
#include "kernels/cuda/launch.h"

namespace quintet::kernels::cuda {

inline constexpr int kColumnWarps = 8;
inline constexpr int64_t kRowChunks = 128;

// Rows of one run: a multiple of the warps, so that each warp adds every eighth row of it.
inline int64_t rows_per_chunk(int64_t rows) {
  return round_up(ceil_div(std::max<int64_t>(rows, 1), kRowChunks), kColumnWarps);
}

// Bytes for `sums` sums a column.
inline int64_t column_sums_workspace(int64_t rows, int64_t columns, int64_t sums) {
  return ceil_div(rows, rows_per_chunk(rows)) * sums * columns * int64_t{sizeof(float)};
}

// partial[chunk, sum, column].
template <int N, typename Terms>
__global__ void __launch_bounds__(32 * kColumnWarps)
    chunk_sums_kernel(Terms terms, int64_t rows, int64_t columns, int64_t chunk_rows, float* partial) {
  constexpr int kSums = Terms::kSums;
  __shared__ float shared[kColumnWarps][32][kSums * N + 1];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int64_t column = (int64_t{blockIdx.x} * 32 + lane) * N;
  const int64_t begin = blockIdx.y * chunk_rows, end = min(rows, begin + chunk_rows);
  float sums[kSums][N] = {};
  if (column < columns) {
    for (int64_t t = begin + warp; t < end; t += kColumnWarps) terms.add(t, column, sums);
  }
#pragma unroll
  for (int i = 0; i < kSums * N; ++i) shared[warp][lane][i] = sums[i / N][i % N];
  __syncthreads();
  if (warp != 0 || column >= columns) return;
#pragma unroll
  for (int i = 0; i < kSums * N; ++i) {
    float total = 0.0F;
#pragma unroll
    for (int w = 0; w < kColumnWarps; ++w) total += shared[w][lane][i];
    partial[(blockIdx.y * int64_t{kSums} + i / N) * columns + column + i % N] = total;
  }
}

template <int kSums, typename G>
struct ColumnGradients {
  G* of_sum[kSums];
};

// gradient[column] += sum of its runs, rounded once.
template <int kSums, typename G>
__global__ void __launch_bounds__(256)
    add_chunks_kernel(int64_t chunks, int64_t columns, const float* partial, ColumnGradients<kSums, G> gradients) {
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= columns) return;
#pragma unroll
  for (int sum = 0; sum < kSums; ++sum) {
    if (gradients.of_sum[sum] == nullptr) continue;
    float total = 0.0F;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) total += partial[(chunk * kSums + sum) * columns + column];
    G& gradient = gradients.of_sum[sum][column];
    gradient = from_float<G>(to_float(gradient) + total);
  }
}

// gradients.of_sum[s][c] += sum over t of what terms.add(t, c, sums) adds to sums[s], where it is not null. packets:
// the operands can be read 16 bytes of T at a time.
template <typename T, typename G, typename Terms>
void add_column_sums(const Terms& terms, int64_t rows, int64_t columns, bool packets,
                     const ColumnGradients<Terms::kSums, G>& gradients, void* workspace, cudaStream_t stream) {
  if (rows == 0) return;
  const int64_t chunk_rows = rows_per_chunk(rows), chunks = ceil_div(rows, chunk_rows);
  float* partial = static_cast<float*>(workspace);
  const auto grid = [&](int per_lane) {
    return dim3(narrow<unsigned>(ceil_div(columns, int64_t{32} * per_lane)), narrow<unsigned>(chunks));
  };
  if (packets) {
    launch(chunk_sums_kernel<kPacket<T>, Terms>, grid(kPacket<T>), 32 * kColumnWarps, 0, stream, terms, rows, columns,
           chunk_rows, partial);
  } else {
    launch(chunk_sums_kernel<1, Terms>, grid(1), 32 * kColumnWarps, 0, stream, terms, rows, columns, chunk_rows,
           partial);
  }
  launch(add_chunks_kernel<Terms::kSums, G>, ceil_div(columns, 256), 256, 0, stream, chunks, columns, partial,
         gradients);
}

}  // namespace quintet::kernels::cuda
