// output = residual + dropout(branch). A thread takes 16 bytes of each operand: four Philox words serve four elements,
// so the arithmetic (about 25 integer operations an element) hides behind memory. Moves 3 (2 without a residual)
// elements each; the floor is that many bytes over the copy bandwidth. Twin: kernels/cpu/dropout.cpp, bit for bit in
// fp32.
#include "kernels/cuda/dropout.h"

#include "kernels/cuda/dropout_mask.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tiles.h"

namespace quintet::kernels::cuda {
namespace {

template <typename T, int N>
__global__ void __launch_bounds__(kTileThreads)
    add_dropout_kernel(DropoutKey key, unsigned per_row, int64_t width, const T* residual, const T* branch, T* output) {
  const auto [row, column] = place_in_rows<N>(per_row);
  if (column >= width) return;
  const int64_t i = row * width + column;
  float values[N];
  load(branch + i, values);
  if (key.active) {
    const uint64_t first = static_cast<uint64_t>(key.rows[row]) * static_cast<uint64_t>(width);
    drop(key, first + static_cast<uint64_t>(column), values);
  }
  if (residual != nullptr) {
    float added[N];
    load(residual + i, added);
#pragma unroll
    for (int k = 0; k < N; ++k) values[k] = __fadd_rn(added[k], values[k]);
  }
  store(values, output + i);
}

}  // namespace

template <typename T>
void add_dropout(const DropoutMask& mask, int64_t rows, int64_t width, const T* residual, const T* branch, T* output,
                 cudaStream_t stream) {
  const auto run = [&](auto kernel, int per_thread) {
    const RowTiles tiles(width, per_thread);
    launch(kernel, tiles.blocks(rows), tiles.threads, 0, stream, key_of(mask), tiles.per_row, width, residual, branch,
           output);
  };
  if (in_packets(width, branch, residual, output)) {
    run(add_dropout_kernel<T, kPacket<T>>, kPacket<T>);
  } else {
    run(add_dropout_kernel<T, 1>, 1);
  }
}

template void add_dropout(const DropoutMask&, int64_t, int64_t, const float*, const float*, float*, cudaStream_t);
template void add_dropout(const DropoutMask&, int64_t, int64_t, const bfloat16*, const bfloat16*, bfloat16*,
                          cudaStream_t);

}  // namespace quintet::kernels::cuda
