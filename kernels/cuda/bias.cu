// add_bias moves 2 elements each; bias_gradient reads one each and a workspace of at most 128 rows (kernels/cuda/
// column_sums.h): the floors are those bytes over the copy bandwidth. Twins: kernels/cpu/activation.cpp's add_bias,
// kernels/cpu/column_sums.cpp.
#include "kernels/cuda/bias.h"

#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tiles.h"

namespace quintet::kernels::cuda {
namespace {

template <typename T, int N>
__global__ void __launch_bounds__(kTileThreads)
    add_bias_kernel(unsigned per_row, int64_t width, const T* bias, T* values) {
  const auto [row, column] = place_in_rows<N>(per_row);
  if (column >= width) return;
  float x[N], added[N];
  load(values + row * width + column, x);
  load(bias + column, added);
#pragma unroll
  for (int k = 0; k < N; ++k) x[k] += added[k];
  store(x, values + row * width + column);
}

template <typename T>
struct BiasTerms {
  static constexpr int kSums = 1;
  const T* values;
  int64_t width;

  template <int N>
  __device__ void add(int64_t t, int64_t c, float (&sums)[kSums][N]) const {
    float x[N];
    load(values + t * width + c, x);
#pragma unroll
    for (int k = 0; k < N; ++k) sums[0][k] += x[k];
  }
};

}  // namespace

template <typename T>
void add_bias(int64_t rows, int64_t width, const T* bias, T* values, cudaStream_t stream) {
  const auto run = [&](auto kernel, int per_thread) {
    const RowTiles tiles(width, per_thread);
    launch(kernel, tiles.blocks(rows), tiles.threads, 0, stream, tiles.per_row, width, bias, values);
  };
  if (in_packets(width, values, bias)) {
    run(add_bias_kernel<T, kPacket<T>>, kPacket<T>);
  } else {
    run(add_bias_kernel<T, 1>, 1);
  }
}

int64_t bias_gradient_workspace(int64_t rows, int64_t width) { return column_sums_workspace(rows, width, 1); }

template <typename T, typename G>
void bias_gradient(int64_t rows, int64_t width, const T* values, G* gradient, void* workspace, cudaStream_t stream) {
  add_column_sums<T, G>(BiasTerms<T>{values, width}, rows, width, in_packets(width, values), {gradient}, workspace,
                        stream);
}

#define QUINTET_INSTANTIATE(T)                                          \
  template void add_bias(int64_t, int64_t, const T*, T*, cudaStream_t); \
  template void bias_gradient(int64_t, int64_t, const T*, float*, void*, cudaStream_t);
QUINTET_INSTANTIATE(float)
QUINTET_INSTANTIATE(bfloat16)
template void bias_gradient(int64_t, int64_t, const bfloat16*, bfloat16*, void*, cudaStream_t);
#undef QUINTET_INSTANTIATE

}  // namespace quintet::kernels::cuda
