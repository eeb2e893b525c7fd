// Forward moves 3 elements each, backward 5: the floor is that many bytes over the copy bandwidth. A packet of 16 bytes
// a thread; arithmetic is fp32. Twin: kernels/cpu/activation.cpp.
#include "kernels/cuda/swiglu.h"

#include "kernels/cuda/elements.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tiles.h"

namespace quintet::kernels::cuda {
namespace {

// Inside it exp(-x) is finite; outside the function has reached 0 or x. NaN passes.
constexpr float kSigmoidRange = 80.0F;

__device__ __forceinline__ float in_range(float x) {
  return x < -kSigmoidRange ? -kSigmoidRange : (x > kSigmoidRange ? kSigmoidRange : x);
}

template <typename T, int N>
__global__ void __launch_bounds__(kTileThreads)
    swiglu_forward_kernel(int64_t elements, const T* gate, const T* up, T* output) {
  const int64_t i = first_element<N>();
  if (i >= elements) return;
  float x[N], u[N];
  load(gate + i, x);
  load(up + i, u);
#pragma unroll
  for (int k = 0; k < N; ++k) x[k] = x[k] / (1.0F + expf(-in_range(x[k]))) * u[k];
  store(x, output + i);
}

template <typename T, int N>
__global__ void __launch_bounds__(kTileThreads)
    swiglu_backward_kernel(int64_t elements, const T* gate, const T* up, const T* d_output, T* d_gate, T* d_up) {
  const int64_t i = first_element<N>();
  if (i >= elements) return;
  float x[N], u[N], d[N];
  load(gate + i, x);
  load(up + i, u);
  load(d_output + i, d);
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const float inside = in_range(x[k]);
    const float e = expf(-inside);
    const float s = 1.0F / (1.0F + e);
    const float gate_slope = s * (1.0F + inside * (s * e));
    const float of_gate = d[k] * u[k] * gate_slope;
    u[k] = d[k] * x[k] * s;
    x[k] = of_gate;
  }
  store(x, d_gate + i);
  store(u, d_up + i);
}

}  // namespace

template <typename T>
void swiglu_forward(int64_t elements, const T* gate, const T* up, T* output, cudaStream_t stream) {
  const auto run = [&](auto kernel, int per_thread) {
    launch(kernel, tiles(elements, per_thread), kTileThreads, 0, stream, elements, gate, up, output);
  };
  if (in_packets(elements, gate, up, output)) {
    run(swiglu_forward_kernel<T, kPacket<T>>, kPacket<T>);
  } else {
    run(swiglu_forward_kernel<T, 1>, 1);
  }
}

template <typename T>
void swiglu_backward(int64_t elements, const T* gate, const T* up, const T* d_output, T* d_gate, T* d_up,
                     cudaStream_t stream) {
  const auto run = [&](auto kernel, int per_thread) {
    launch(kernel, tiles(elements, per_thread), kTileThreads, 0, stream, elements, gate, up, d_output, d_gate, d_up);
  };
  if (in_packets(elements, gate, up, d_output, d_gate, d_up)) {
    run(swiglu_backward_kernel<T, kPacket<T>>, kPacket<T>);
  } else {
    run(swiglu_backward_kernel<T, 1>, 1);
  }
}

#define QUINTET_INSTANTIATE(T)                                                 \
  template void swiglu_forward(int64_t, const T*, const T*, T*, cudaStream_t); \
  template void swiglu_backward(int64_t, const T*, const T*, const T*, T*, T*, cudaStream_t);
QUINTET_INSTANTIATE(float)
QUINTET_INSTANTIATE(bfloat16)
#undef QUINTET_INSTANTIATE

}  // namespace quintet::kernels::cuda
