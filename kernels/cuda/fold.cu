// A packet of 16 bytes of each input a thread. Moves one element each of every input and of the output: the floor is
// that many bytes over the copy bandwidth. Twin: lib/comm/fold.cpp.
#include "kernels/cuda/fold.h"

#include <algorithm>

#include "kernels/cuda/elements.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tiles.h"

namespace quintet::kernels::cuda {
namespace {

template <typename T>
struct Inputs {
  int count = 0;
  const T* at[kMaxFolded] = {};
};

template <typename T, int N>
__global__ void __launch_bounds__(kTileThreads)
    fold_kernel(int64_t elements, const __grid_constant__ Inputs<T> inputs, T* output) {
  const int64_t i = first_element<N>();
  if (i >= elements) return;
  float sum[N];
  load(inputs.at[0] + i, sum);
  for (int input = 1; input < inputs.count; ++input) {
    float x[N];
    load(inputs.at[input] + i, x);
#pragma unroll
    for (int k = 0; k < N; ++k) sum[k] += x[k];
  }
  store(sum, output + i);
}

}  // namespace

template <typename T>
void fold(int64_t elements, std::span<const T* const> inputs, T* output, cudaStream_t stream) {
  QUINTET_CHECK(!inputs.empty() && inputs.size() <= kMaxFolded, "{} buffers to add", inputs.size());
  Inputs<T> all;
  all.count = static_cast<int>(inputs.size());
  std::copy(inputs.begin(), inputs.end(), all.at);
  const bool packets = in_packets(elements, output) && std::all_of(inputs.begin(), inputs.end(), [&](const T* input) {
                         return in_packets(elements, input);
                       });
  launch(packets ? fold_kernel<T, kPacket<T>> : fold_kernel<T, 1>, tiles(elements, packets ? kPacket<T> : 1),
         kTileThreads, 0, stream, elements, all, output);
}

template void fold(int64_t, std::span<const float* const>, float*, cudaStream_t);
template void fold(int64_t, std::span<const bfloat16* const>, bfloat16*, cudaStream_t);

}  // namespace quintet::kernels::cuda
