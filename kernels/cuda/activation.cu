// Activations and their slopes, a packet of 16 bytes a thread. Forward moves 3 elements each with a bias and 2 without
// (cuBLASLt's epilogue leaves nothing to do here for gelu), backward 3: the floor is that many bytes over the copy
// bandwidth. Exponentials are expf, within 2 units in the last place. Twin: kernels/cpu/activation.cpp.
#include "kernels/cuda/activation.h"

#include "kernels/cuda/elements.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tiles.h"

namespace quintet::kernels::cuda {
namespace {

__device__ __forceinline__ float clamped(float x, float range) { return fminf(fmaxf(x, -range), range); }

// Beyond kRange the functions have reached 0 or x, and their slopes 0 or 1, to the last bit. NaN passes.
struct Gelu {
  static constexpr float kOuter = 1.59576912160573071F, kCubic = 0.044715F, kRange = 10.0F;

  __device__ static float value(float x) {
    const float inner = clamped(x, kRange);
    return x / (1.0F + expf(-kOuter * (inner + kCubic * inner * inner * inner)));
  }
  __device__ static float slope(float x) {
    if (x != x) return x;
    x = clamped(x, kRange);
    const float e = expf(-kOuter * (x + kCubic * x * x * x));
    const float s = 1.0F / (1.0F + e);
    return s + x * s * (s * e) * kOuter * (1.0F + 3.0F * kCubic * x * x);
  }
};

struct GeluExact {
  static constexpr float kRange = 20.0F;

  __device__ static float distribution(float x) { return 0.5F * erfcf(-x * 0.707106781186547524F); }
  __device__ static float value(float x) { return x * distribution(x); }
  __device__ static float slope(float x) {
    if (x != x) return x;
    x = clamped(x, kRange);
    return distribution(x) + x * 0.398942280401432678F * expf(-0.5F * x * x);
  }
};

struct ReluSquared {
  __device__ static float value(float x) { return x < 0.0F ? 0.0F : x * x; }
  __device__ static float slope(float x) { return x < 0.0F ? 0.0F : 2.0F * x; }
};

template <typename Function>
void visit(ActivationKind kind, Function&& function) {
  switch (kind) {
    case ActivationKind::gelu: return function(Gelu{});
    case ActivationKind::gelu_exact: return function(GeluExact{});
    case ActivationKind::relu_squared: return function(ReluSquared{});
  }
}

template <typename F, typename T, int N>
__global__ void __launch_bounds__(kTileThreads)
    activation_forward_kernel(unsigned per_row, int64_t width, const T* bias, T* pre_activation, T* output) {
  const auto [row, column] = place_in_rows<N>(per_row);
  if (column >= width) return;
  const int64_t i = row * width + column;
  float x[N];
  load(pre_activation + i, x);
  if (bias != nullptr) {
    float added[N];
    load(bias + column, added);
#pragma unroll
    for (int k = 0; k < N; ++k) x[k] = rounded<T>(x[k] + added[k]);
    store(x, pre_activation + i);
  }
#pragma unroll
  for (int k = 0; k < N; ++k) x[k] = F::value(x[k]);
  store(x, output + i);
}

template <typename F, typename T, int N>
__global__ void __launch_bounds__(kTileThreads)
    activation_backward_kernel(int64_t elements, const T* pre_activation, T* gradient) {
  const int64_t i = first_element<N>();
  if (i >= elements) return;
  float x[N], d[N];
  load(pre_activation + i, x);
  load(gradient + i, d);
#pragma unroll
  for (int k = 0; k < N; ++k) d[k] *= F::slope(x[k]);
  store(d, gradient + i);
}

}  // namespace

template <typename T>
void bias_activation_forward(ActivationKind kind, int64_t rows, int64_t width, const T* bias, T* pre_activation,
                             T* output, cudaStream_t stream) {
  visit(kind, [&]<typename F>(F) {
    const auto run = [&](auto kernel, int per_thread) {
      const RowTiles tiles(width, per_thread);
      launch(kernel, tiles.blocks(rows), tiles.threads, 0, stream, tiles.per_row, width, bias, pre_activation, output);
    };
    if (in_packets(width, pre_activation, bias, output)) {
      run(activation_forward_kernel<F, T, kPacket<T>>, kPacket<T>);
    } else {
      run(activation_forward_kernel<F, T, 1>, 1);
    }
  });
}

template <typename T>
void activation_backward(ActivationKind kind, int64_t elements, const T* pre_activation, T* gradient,
                         cudaStream_t stream) {
  visit(kind, [&]<typename F>(F) {
    const auto run = [&](auto kernel, int per_thread) {
      launch(kernel, tiles(elements, per_thread), kTileThreads, 0, stream, elements, pre_activation, gradient);
    };
    if (in_packets(elements, pre_activation, gradient)) {
      run(activation_backward_kernel<F, T, kPacket<T>>, kPacket<T>);
    } else {
      run(activation_backward_kernel<F, T, 1>, 1);
    }
  });
}

#define QUINTET_INSTANTIATE(T)                                                                             \
  template void bias_activation_forward(ActivationKind, int64_t, int64_t, const T*, T*, T*, cudaStream_t); \
  template void activation_backward(ActivationKind, int64_t, const T*, T*, cudaStream_t);
QUINTET_INSTANTIATE(float)
QUINTET_INSTANTIATE(bfloat16)
#undef QUINTET_INSTANTIATE

}  // namespace quintet::kernels::cuda
