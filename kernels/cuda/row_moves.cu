// Gathering and combining: a block lies in one row, 16 bytes a thread. gather_rows moves 2 elements each, combine_rows
// one of each pick, one of the output and 4 bytes of the addend. Backward: a warp takes one pick, reads both its rows
// and writes one: 3 elements each, of which d_output's come from the second-level cache but for the first pick. Floors:
// those bytes over the copy bandwidth. Twin: kernels/cpu/row_moves.cpp.
#include "kernels/cuda/row_moves.h"

#include "kernels/cuda/elements.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/tiles.h"

namespace quintet::kernels::cuda {
namespace {

template <typename T, int N>
__global__ void __launch_bounds__(kTileThreads)
    gather_rows_kernel(unsigned per_row, int64_t width, const T* input, const int32_t* index, T* output) {
  const auto [row, column] = place_in_rows<N>(per_row);
  if (column >= width) return;
  const int64_t from = index[row];
  float x[N] = {};
  if (from != kNoRow) load(input + from * width + column, x);
  store(x, output + row * width + column);
}

template <typename T, int N>
__global__ void __launch_bounds__(kTileThreads)
    combine_rows_kernel(CombineShape shape, unsigned per_row, const T* input, const int32_t* index,
                        const float* weights, const float* addend, T* output) {
  const auto [row, column] = place_in_rows<N>(per_row);
  if (column >= shape.width) return;
  float sums[N] = {};
  if (addend != nullptr) load_floats(addend + row * shape.width + column, sums);
  for (int64_t slot = row * shape.picks; slot < (row + 1) * shape.picks; ++slot) {
    const int64_t from = index[slot];
    if (from == kNoRow) continue;
    const float weight = weights == nullptr ? 1.0F : weights[slot];
    float x[N];
    load(input + from * shape.width + column, x);
#pragma unroll
    for (int k = 0; k < N; ++k) sums[k] += weight * x[k];
  }
  store(sums, output + row * shape.width + column);
}

template <typename T, int N>
__global__ void __launch_bounds__(kTileThreads)
    combine_rows_backward_kernel(CombineShape shape, const T* input, const int32_t* index, const float* weights,
                                 const T* d_output, T* d_input, float* d_weights) {
  const int64_t slot = (int64_t{blockIdx.x} * kTileThreads + threadIdx.x) / 32;
  if (slot >= shape.rows * shape.picks) return;  // whole warps
  const int64_t lane = threadIdx.x % 32, row = index[slot];
  float product = 0.0F;
  if (row != kNoRow) {
    const float weight = weights[slot];
    const int64_t from = slot / shape.picks * shape.width, at = row * shape.width;
    for (int64_t c = lane * N; c < shape.width; c += 32 * N) {
      float d[N], x[N];
      load(d_output + from + c, d);
      load(input + at + c, x);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        product += d[k] * x[k];
        d[k] *= weight;
      }
      store(d, d_input + at + c);
    }
  }
  product = reduce_warp<Sum>(product);
  if (lane == 0) d_weights[slot] = product;
}

}  // namespace

template <typename T>
void gather_rows(int64_t rows, int64_t width, const T* input, const int32_t* index, T* output, cudaStream_t stream) {
  const auto run = [&](auto kernel, int per_thread) {
    const RowTiles tiles(width, per_thread);
    launch(kernel, tiles.blocks(rows), tiles.threads, 0, stream, tiles.per_row, width, input, index, output);
  };
  if (in_packets(width, input, output)) {
    run(gather_rows_kernel<T, kPacket<T>>, kPacket<T>);
  } else {
    run(gather_rows_kernel<T, 1>, 1);
  }
}

template <typename T>
void combine_rows(const CombineShape& shape, const T* input, const int32_t* index, const float* weights,
                  const float* addend, T* output, cudaStream_t stream) {
  const auto run = [&](auto kernel, int per_thread) {
    const RowTiles tiles(shape.width, per_thread);
    launch(kernel, tiles.blocks(shape.rows), tiles.threads, 0, stream, shape, tiles.per_row, input, index, weights,
           addend, output);
  };
  if (in_packets(shape.width, input, output, addend)) {
    run(combine_rows_kernel<T, kPacket<T>>, kPacket<T>);
  } else {
    run(combine_rows_kernel<T, 1>, 1);
  }
}

template <typename T>
void combine_rows_backward(const CombineShape& shape, const T* input, const int32_t* index, const float* weights,
                           const T* d_output, T* d_input, float* d_weights, cudaStream_t stream) {
  const auto kernel = in_packets(shape.width, input, d_output, d_input) ? combine_rows_backward_kernel<T, kPacket<T>>
                                                                        : combine_rows_backward_kernel<T, 1>;
  launch(kernel, tiles(shape.rows * shape.picks * 32, 1), kTileThreads, 0, stream, shape, input, index, weights,
         d_output, d_input, d_weights);
}

#define QUINTET_INSTANTIATE(T)                                                                                   \
  template void gather_rows(int64_t, int64_t, const T*, const int32_t*, T*, cudaStream_t);                       \
  template void combine_rows(const CombineShape&, const T*, const int32_t*, const float*, const float*, T*,      \
                             cudaStream_t);                                                                      \
  template void combine_rows_backward(const CombineShape&, const T*, const int32_t*, const float*, const T*, T*, \
                                      float*, cudaStream_t);
QUINTET_INSTANTIATE(float)
QUINTET_INSTANTIATE(bfloat16)
#undef QUINTET_INSTANTIATE

}  // namespace quintet::kernels::cuda
