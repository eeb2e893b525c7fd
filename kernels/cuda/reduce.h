// Sums and maxima over a warp and a block, in an order that depends on the block's size alone.
#pragma once

#include <limits>

#include "kernels/cuda/intrinsics.h"

namespace quintet::kernels::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffU;

struct Sum {
  static constexpr float kNeutral = 0.0F;
  template <typename T>
  __device__ static T combine(T a, T b) {
    return a + b;
  }
};
// NaN never wins: who must see it finds it in the sum.
struct Maximum {
  static constexpr float kNeutral = -std::numeric_limits<float>::infinity();
  template <typename T>
  __device__ static T combine(T a, T b) {
    return b > a ? b : a;
  }
};

// On all lanes. With `lanes`, a power of two, within each run of so many lanes.
template <typename Operation, typename T>
__device__ __forceinline__ T reduce_warp(T value, int lanes = 32) {
#pragma unroll
  for (int offset = lanes / 2; offset > 0; offset /= 2) {
    value = Operation::combine(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  return value;
}

// On all threads of a block of whole warps, 1024 threads at most. `scratch`: 32 values of shared memory, free again
// after the next barrier of the block.
template <typename Operation, typename T>
__device__ __forceinline__ T reduce_block(T value, T* scratch) {
  value = reduce_warp<Operation>(value);
  if (blockDim.x == 32) return value;
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  const unsigned lane = threadIdx.x % 32;
  return reduce_warp<Operation>(lane < blockDim.x / 32 ? scratch[lane] : T{Operation::kNeutral});
}

}  // namespace quintet::kernels::cuda
