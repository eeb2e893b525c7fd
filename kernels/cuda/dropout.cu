// output = residual + dropout(branch). A thread takes 16 bytes of each operand: four Philox words serve four elements,
// so the arithmetic (about 25 integer operations an element) hides behind memory. Moves 3 (2 without a residual)
// elements each; the floor is that many bytes over the copy bandwidth. Twin: kernels/cpu/dropout.cpp, bit for bit in
// fp32.
#include "kernels/cuda/dropout.h"

#include "kernels/cuda/dropout_mask.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launch.h"

namespace quintet::kernels::cuda {
namespace {

constexpr unsigned kThreads = 256;

template <typename T, int N>
__global__ void add_dropout_kernel(DropoutKey key, int64_t elements, int64_t width, const T* residual, const T* branch,
                                   T* output) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * N;
  if (i >= elements) return;
  float values[N];
  load(branch + i, values);
  if (key.active) {
    const int64_t t = i / width, c = i % width;
    drop(key, static_cast<uint64_t>(key.rows[t]) * static_cast<uint64_t>(width) + static_cast<uint64_t>(c), values);
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
  const int64_t elements = rows * width;
  const DropoutKey key = key_of(mask);
  if (in_packets(width, branch, residual, output)) {
    launch(add_dropout_kernel<T, kPacket<T>>, ceil_div(elements, kThreads * kPacket<T>), kThreads, 0, stream, key,
           elements, width, residual, branch, output);
  } else {
    launch(add_dropout_kernel<T, 1>, ceil_div(elements, kThreads), kThreads, 0, stream, key, elements, width, residual,
           branch, output);
  }
}

template void add_dropout(const DropoutMask&, int64_t, int64_t, const float*, const float*, float*, cudaStream_t);
template void add_dropout(const DropoutMask&, int64_t, int64_t, const bfloat16*, const bfloat16*, bfloat16*,
                          cudaStream_t);

}  // namespace quintet::kernels::cuda
