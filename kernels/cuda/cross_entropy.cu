// One block a row. Statistics read a row once: each thread keeps a running maximum and the sum of exponentials below
// it, rescaling the sum when the maximum grows (Milakov and Gimelshein 2018, "Online normalizer calculation for
// softmax"). The gradient reads and writes a row once. Floors: 1 and 2 elements each over the copy bandwidth. Offsets
// are 64-bit: logits may exceed 2^31 elements. Twin: kernels/cpu/cross_entropy.cpp.
#include "kernels/cuda/cross_entropy.h"

#include <limits>

#include "kernels/cuda/elements.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/tiles.h"

namespace quintet::kernels::cuda {
namespace {

constexpr unsigned kRowThreads = 512;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// What a row's logits are lowered by. In a row of -inf every difference would be NaN: its maximum is taken as 0, which
// keeps a NaN visible.
__device__ __forceinline__ float shift_of(float maximum) { return maximum == -kInfinity ? 0.0F : maximum; }

// The target's column in this shard, or -1.
template <typename T>
__device__ __forceinline__ int64_t target_column(const CrossEntropyArgs<T>& args, int64_t t) {
  const int64_t target = args.targets[t], column = target - args.vocabulary_start;
  return target >= 0 && column >= 0 && column < args.valid ? column : -1;
}

template <typename T, int N>
__global__ void __launch_bounds__(kRowThreads)
    cross_entropy_statistics_kernel(CrossEntropyArgs<T> args, float* maximum, float* sum_exp, float* target_logit) {
  __shared__ float scratch[2][32];
  const int64_t t = blockIdx.x;
  const T* row = args.logits + t * args.columns;
  float most = -kInfinity, sum = 0.0F;
  for (int64_t c = int64_t{threadIdx.x} * N; c < args.valid; c += int64_t{kRowThreads} * N) {
    float x[N];
    load(row + c, x);
    float larger = most;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if (c + k >= args.valid) x[k] = -kInfinity;
      larger = Maximum::combine(larger, x[k]);
    }
    const float shift = shift_of(larger);
    if (larger > most) sum *= expf(most - shift);
    most = larger;
#pragma unroll
    for (int k = 0; k < N; ++k) sum += expf(x[k] - shift);
  }
  const float whole = reduce_block<Maximum>(most, scratch[0]);
  sum = reduce_block<Sum>(sum * expf(most - shift_of(whole)), scratch[1]);
  if (threadIdx.x != 0) return;
  const int64_t target = target_column(args, t);
  maximum[t] = whole;
  sum_exp[t] = sum;
  target_logit[t] = target < 0 ? 0.0F : to_float(row[target]);
}

__global__ void __launch_bounds__(kTileThreads)
    cross_entropy_merge_kernel(int64_t shards, int64_t rows, const float* statistics, float* maximum, float* sum_exp,
                               float* target_logit) {
  const int64_t t = first_element<1>();
  if (t >= rows) return;
  float most = -kInfinity;
  for (int64_t shard = 0; shard < shards; ++shard) most = Maximum::combine(most, statistics[shard * 3 * rows + t]);
  float sum = 0.0F, target = 0.0F;
  for (int64_t shard = 0; shard < shards; ++shard) {
    const float* part = statistics + shard * 3 * rows + t;
    sum += part[rows] * expf(part[0] - shift_of(most));
    target += part[2 * rows];
  }
  maximum[t] = most;
  sum_exp[t] = sum;
  target_logit[t] = target;
}

template <typename T, int N>
__global__ void __launch_bounds__(kRowThreads)
    cross_entropy_gradient_kernel(CrossEntropyArgs<T> args, const float* maximum, const float* sum_exp, float scale) {
  const int64_t t = blockIdx.x;
  T* row = args.logits + t * args.columns;
  const bool counts = args.targets[t] >= 0;
  const int64_t target = target_column(args, t);
  const float most = maximum[t], factor = scale / sum_exp[t];
  for (int64_t c = int64_t{threadIdx.x} * N; c < args.columns; c += int64_t{kRowThreads} * N) {
    float x[N] = {};
    if (counts && c < args.valid) {
      load(row + c, x);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        x[k] = c + k < args.valid ? expf(x[k] - most) * factor : 0.0F;
        if (c + k == target) x[k] -= scale;
      }
    }
    store(x, row + c);
  }
}

}  // namespace

template <typename T>
void cross_entropy_statistics(const CrossEntropyArgs<T>& args, float* maximum, float* sum_exp, float* target_logit,
                              cudaStream_t stream) {
  const bool packets = in_packets(args.columns, args.logits);
  launch(packets ? cross_entropy_statistics_kernel<T, kPacket<T>> : cross_entropy_statistics_kernel<T, 1>, args.rows,
         kRowThreads, 0, stream, args, maximum, sum_exp, target_logit);
}

void cross_entropy_merge(int64_t shards, int64_t rows, const float* statistics, float* maximum, float* sum_exp,
                         float* target_logit, cudaStream_t stream) {
  launch(cross_entropy_merge_kernel, tiles(rows, 1), kTileThreads, 0, stream, shards, rows, statistics, maximum,
         sum_exp, target_logit);
}

template <typename T>
void cross_entropy_gradient(const CrossEntropyArgs<T>& args, const float* maximum, const float* sum_exp, double scale,
                            cudaStream_t stream) {
  const bool packets = in_packets(args.columns, args.logits);
  launch(packets ? cross_entropy_gradient_kernel<T, kPacket<T>> : cross_entropy_gradient_kernel<T, 1>, args.rows,
         kRowThreads, 0, stream, args, maximum, sum_exp, static_cast<float>(scale));
}

#define QUINTET_INSTANTIATE(T)                                                                              \
  template void cross_entropy_statistics(const CrossEntropyArgs<T>&, float*, float*, float*, cudaStream_t); \
  template void cross_entropy_gradient(const CrossEntropyArgs<T>&, const float*, const float*, double, cudaStream_t);
QUINTET_INSTANTIATE(float)
QUINTET_INSTANTIATE(bfloat16)
#undef QUINTET_INSTANTIATE

}  // namespace quintet::kernels::cuda
