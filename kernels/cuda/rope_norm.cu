// Up to 32 lanes share a row, each holding packets of the lower half and their partners of the upper; the norm's sum
// stays within the lanes. The second look at a row comes from the first-level cache. Forward moves 2 elements each,
// backward 3, and 2 more for the gradient of the scale (kernels/cuda/column_sums.h): floors are those bytes over the
// copy bandwidth. The rotation takes the normed values before they are rounded. Twin: kernels/cpu/rope_norm.cpp.
#include "kernels/cuda/rope_norm.h"

#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/tiles.h"

namespace quintet::kernels::cuda {
namespace {

// Channels i + k and i + k + width / 2 of one row.
template <int N>
struct Pair {
  float low[N], high[N];
};

template <int N, typename T>
__device__ __forceinline__ Pair<N> load_pair(const T* row, int64_t i, int64_t half) {
  Pair<N> pair;
  load(row + i, pair.low);
  load(row + half + i, pair.high);
  return pair;
}
template <int N, typename T>
__device__ __forceinline__ void store_pair(const Pair<N>& pair, T* row, int64_t i, int64_t half) {
  store(pair.low, row + i);
  store(pair.high, row + half + i);
}

// Turns by the angles of token t, or back with direction -1.
template <int N, typename T>
__device__ __forceinline__ void rotate(const RopeNormArgs<T>& args, int64_t t, int64_t i, float direction,
                                       Pair<N>& pair) {
  if (args.cosine == nullptr) return;
  const int64_t angle = args.positions[t] * (args.width / 2) + i;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const float c = args.cosine[angle + k], s = direction * args.sine[angle + k];
    const float low = pair.low[k], high = pair.high[k];
    pair.low[k] = low * c - high * s;
    pair.high[k] = high * c + low * s;
  }
}

template <typename T, int N>
__global__ void __launch_bounds__(kTileThreads)
    rope_norm_forward_kernel(RopeNormArgs<T> args, unsigned lanes, const T* input, float* inverse_rms, T* output) {
  const int64_t row = (int64_t{blockIdx.x} * kTileThreads + threadIdx.x) / lanes, half = args.width / 2;
  const bool valid = row < args.tokens * args.heads;
  const unsigned lane = threadIdx.x % lanes;
  const T* from = input + row * args.width;
  float inverse = 1.0F;
  if (args.scale != nullptr) {
    float squares = 0.0F;
    for (int64_t i = lane * N; valid && i < half; i += lanes * N) {
      const Pair<N> x = load_pair<N>(from, i, half);
#pragma unroll
      for (int k = 0; k < N; ++k) squares += x.low[k] * x.low[k] + x.high[k] * x.high[k];
    }
    squares = reduce_warp<Sum>(squares, static_cast<int>(lanes));
    inverse = 1.0F / sqrtf(squares / static_cast<float>(args.width) + static_cast<float>(args.epsilon));
    if (valid && lane == 0) inverse_rms[row] = inverse;
  }
  for (int64_t i = lane * N; valid && i < half; i += lanes * N) {
    Pair<N> x = load_pair<N>(from, i, half);
    if (args.scale != nullptr) {
      const Pair<N> scale = load_pair<N>(args.scale, i, half);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        x.low[k] *= inverse * scale.low[k];
        x.high[k] *= inverse * scale.high[k];
      }
    }
    rotate(args, row / args.heads, i, 1.0F, x);
    store_pair(x, output + row * args.width, i, half);
  }
}

// With n = x * inverse and g = d * scale, d the gradient turned back: d_x = inverse * (g - n * average(g n)).
template <typename T, int N>
__global__ void __launch_bounds__(kTileThreads)
    rope_norm_backward_kernel(RopeNormArgs<T> args, unsigned lanes, const T* input, const float* inverse_rms,
                              const T* d_output, T* d_input) {
  const int64_t row = (int64_t{blockIdx.x} * kTileThreads + threadIdx.x) / lanes, half = args.width / 2;
  const bool valid = row < args.tokens * args.heads;
  const unsigned lane = threadIdx.x % lanes;
  const T* from = input + row * args.width;
  const T* d = d_output + row * args.width;
  const auto turned_back = [&](int64_t i) {
    Pair<N> g = load_pair<N>(d, i, half);
    rotate(args, row / args.heads, i, -1.0F, g);
    if (args.scale != nullptr) {
      const Pair<N> scale = load_pair<N>(args.scale, i, half);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        g.low[k] *= scale.low[k];
        g.high[k] *= scale.high[k];
      }
    }
    return g;
  };
  float inverse = 1.0F, product = 0.0F;
  if (args.scale != nullptr) {
    if (valid) inverse = inverse_rms[row];
    for (int64_t i = lane * N; valid && i < half; i += lanes * N) {
      const Pair<N> x = load_pair<N>(from, i, half), g = turned_back(i);
#pragma unroll
      for (int k = 0; k < N; ++k) product += g.low[k] * x.low[k] * inverse + g.high[k] * x.high[k] * inverse;
    }
    product = reduce_warp<Sum>(product, static_cast<int>(lanes)) / static_cast<float>(args.width);
  }
  for (int64_t i = lane * N; valid && i < half; i += lanes * N) {
    Pair<N> g = turned_back(i);
    if (args.scale != nullptr) {
      const Pair<N> x = load_pair<N>(from, i, half);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        g.low[k] = inverse * (g.low[k] - x.low[k] * inverse * product);
        g.high[k] = inverse * (g.high[k] - x.high[k] * inverse * product);
      }
    }
    store_pair(g, d_input + row * args.width, i, half);
  }
}

// Of the scale's gradient: the gradient turned back times the normed input. A packet lies in one half of the row.
template <typename T>
struct ScaleTerms {
  static constexpr int kSums = 1;
  RopeNormArgs<T> args;
  const T* input;
  const float* inverse_rms;
  const T* gradient;

  template <int N>
  __device__ void add(int64_t row, int64_t c, float (&sums)[kSums][N]) const {
    const int64_t half = args.width / 2, i = c < half ? c : c - half;
    Pair<N> g = load_pair<N>(gradient + row * args.width, i, half);
    rotate(args, row / args.heads, i, -1.0F, g);
    float x[N];
    load(input + row * args.width + c, x);
    const float inverse = inverse_rms[row];
#pragma unroll
    for (int k = 0; k < N; ++k) sums[0][k] += (c < half ? g.low[k] : g.high[k]) * (x[k] * inverse);
  }
};

// Lanes to a row: a power of two.
unsigned lanes_for(int64_t half, int per_lane) {
  unsigned lanes = 1;
  while (lanes < 32 && int64_t{lanes} * per_lane < half) lanes *= 2;
  return lanes;
}

}  // namespace

template <typename T>
void rope_norm_forward(const RopeNormArgs<T>& args, const T* input, float* inverse_rms, T* output,
                       cudaStream_t stream) {
  QUINTET_CHECK(args.width % 2 == 0, "a head of {} channels has no halves", args.width);
  const auto run = [&](auto kernel, int per_lane) {
    const unsigned lanes = lanes_for(args.width / 2, per_lane);
    launch(kernel, tiles(args.tokens * args.heads * lanes, 1), kTileThreads, 0, stream, args, lanes, input, inverse_rms,
           output);
  };
  if (in_packets(args.width / 2, input, output, args.scale)) {
    run(rope_norm_forward_kernel<T, kPacket<T>>, kPacket<T>);
  } else {
    run(rope_norm_forward_kernel<T, 1>, 1);
  }
}

int64_t rope_norm_workspace(int64_t tokens, int64_t heads, int64_t width) {
  return column_sums_workspace(tokens * heads, width, 1);
}

template <typename T>
void rope_norm_backward_input(const RopeNormArgs<T>& args, const T* input, const float* inverse_rms, const T* d_output,
                              T* d_input, cudaStream_t stream) {
  QUINTET_CHECK(args.width % 2 == 0, "a head of {} channels has no halves", args.width);
  const auto run = [&](auto kernel, int per_lane) {
    const unsigned lanes = lanes_for(args.width / 2, per_lane);
    launch(kernel, tiles(args.tokens * args.heads * lanes, 1), kTileThreads, 0, stream, args, lanes, input, inverse_rms,
           d_output, d_input);
  };
  if (in_packets(args.width / 2, d_output, d_input, input, args.scale)) {
    run(rope_norm_backward_kernel<T, kPacket<T>>, kPacket<T>);
  } else {
    run(rope_norm_backward_kernel<T, 1>, 1);
  }
}

template <typename T, typename G>
void rope_norm_backward_scale(const RopeNormArgs<T>& args, const T* input, const float* inverse_rms, const T* d_output,
                              G* scale_gradient, void* workspace, cudaStream_t stream) {
  QUINTET_CHECK(args.width % 2 == 0, "a head of {} channels has no halves", args.width);
  add_column_sums<T, G>(ScaleTerms<T>{args, input, inverse_rms, d_output}, args.tokens * args.heads, args.width,
                        in_packets(args.width / 2, d_output, input), {scale_gradient}, workspace, stream);
}

#define QUINTET_INSTANTIATE(T)                                                                                        \
  template void rope_norm_forward(const RopeNormArgs<T>&, const T*, float*, T*, cudaStream_t);                        \
  template void rope_norm_backward_input(const RopeNormArgs<T>&, const T*, const float*, const T*, T*, cudaStream_t); \
  template void rope_norm_backward_scale(const RopeNormArgs<T>&, const T*, const float*, const T*, float*, void*,     \
                                         cudaStream_t);
QUINTET_INSTANTIATE(float)
QUINTET_INSTANTIATE(bfloat16)
template void rope_norm_backward_scale(const RopeNormArgs<bfloat16>&, const bfloat16*, const float*, const bfloat16*,
                                       bfloat16*, void*, cudaStream_t);
#undef QUINTET_INSTANTIATE

}  // namespace quintet::kernels::cuda
