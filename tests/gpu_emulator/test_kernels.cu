#include "tests/gpu_emulator/test_kernels.h"

#include "kernels/cuda/intrinsics.h"
#include "kernels/cuda/launch.h"

namespace quintet::testing {
namespace {

using namespace quintet::kernels::cuda;

constexpr unsigned kFull = 0xffffffffU;

__global__ void ramp_kernel(int64_t count, float a, float* output) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) output[i] = a * static_cast<float>(i);
}

__device__ float warp_sum(float value) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(kFull, value, offset);
  return value;
}

template <bool barrier>
__global__ void block_sum_kernel(const float* input, float* output) {
  __shared__ float partial[32];
  const float sum = warp_sum(input[int64_t{blockIdx.x} * blockDim.x + threadIdx.x]);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  if constexpr (barrier) __syncthreads();
  if (threadIdx.x < 32) {
    const float total = warp_sum(threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0.0F);
    if (threadIdx.x == 0) output[blockIdx.x] = total;
  }
}

__global__ void reverse_kernel(const float* input, float* output) {
  float* row = static_cast<float*>(dynamic_shared_memory());
  const int64_t first = int64_t{blockIdx.x} * blockDim.x;
  row[threadIdx.x] = input[first + threadIdx.x];
  __syncthreads();
  output[first + threadIdx.x] = row[blockDim.x - 1 - threadIdx.x];
}

__global__ void count_kernel(int64_t count, const int* input, int* counts, int* ranks) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const unsigned active = __ballot_sync(kFull, i < count ? 1 : 0);
  if (i >= count) return;
  const int value = __ldg(input + i);
  const unsigned equal = __match_any_sync(active, value);
  const unsigned before = equal & ((1U << threadIdx.x % 32) - 1);
  ranks[i] = __popc(before);
  if (before == 0) atomicAdd(counts + value, __popc(equal));
}

__global__ void vote_kernel(const int* input, unsigned* votes, int* any, int* all) {
  const int positive = input[threadIdx.x] > 0 ? 1 : 0;
  const unsigned ballot = __ballot_sync(kFull, positive);
  const int some = __any_sync(kFull, positive), every = __all_sync(kFull, positive);
  if (threadIdx.x % 32 != 0) return;
  votes[threadIdx.x / 32] = ballot;
  any[threadIdx.x / 32] = some;
  all[threadIdx.x / 32] = every;
}

template <bool wait>
__global__ void multiply_kernel(const uint16_t* a, const uint16_t* b, float* c) {
  auto* left = static_cast<uint16_t*>(dynamic_shared_memory());
  uint16_t* right = left + 16 * 16;
  const unsigned lane = threadIdx.x;
  copy_async(left + lane * 8, a + lane * 8);
  if (lane < 16) copy_async(right + lane * 8, b + lane * 8);
  commit_copies();
  if constexpr (wait) wait_for_copies<0>();
  __syncwarp();
  uint32_t left_parts[4], right_parts[4];
  load_matrices(left_parts, left + lane % 16 * 16 + lane / 16 * 8);
  load_matrices_transposed(right_parts, right + lane % 16 * 8);
  const uint32_t right_pair[2] = {right_parts[0], right_parts[1]};
  float sums[4] = {};
  multiply_accumulate(sums, left_parts, right_pair);
  const unsigned row = lane / 4, column = lane % 4 * 2;
  c[row * 8 + column] = sums[0];
  c[row * 8 + column + 1] = sums[1];
  c[(row + 8) * 8 + column] = sums[2];
  c[(row + 8) * 8 + column + 1] = sums[3];
}

__global__ void leaving_kernel() {
  if (threadIdx.x == 5) return;
  __syncthreads();
}

__global__ void branching_kernel() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

__global__ void shuffling_branch_kernel() {
  if (threadIdx.x < 16) __shfl_xor_sync(kFull, 1.0F, 1);
}
__global__ void foreign_mask_kernel() { __shfl_xor_sync(0xffU, 1.0F, 1); }
__global__ void outside_mask_kernel() {
  if (threadIdx.x < 8) __shfl_sync(0xffU, 1.0F, 12);
}

__global__ void static_array_kernel(int element, int* output) {
  __shared__ int values[8];
  values[element] = 1;
  *output = values[element];
}

__global__ void write_kernel(float* output, int64_t offset, bool wide) {
  if (wide) {
    *reinterpret_cast<float4*>(output + offset) = make_float4(1, 1, 1, 1);
  } else {
    output[offset] = 1;
  }
}

template <bool ascending>
__global__ void turns_kernel(int32_t* turn, int32_t* order) {
  const auto place = static_cast<int32_t>(ascending ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
  if (threadIdx.x == 0) wait_for_turn(turn, place);
  __syncthreads();
  if (threadIdx.x == 1) order[place] = static_cast<int32_t>(blockIdx.x);
  __syncthreads();
  if (threadIdx.x == 0) pass_turn(turn, place + 1);
}

}  // namespace

void fill_ramp(int64_t count, float a, float* output, cudaStream_t stream) {
  launch(ramp_kernel, ceil_div(count, 64), 64, 0, stream, count, a, output);
}
void block_sums(int64_t blocks, unsigned threads, const float* input, float* output, cudaStream_t stream) {
  launch(block_sum_kernel<true>, blocks, threads, 0, stream, input, output);
}
void block_sums_without_barrier(int64_t blocks, unsigned threads, const float* input, float* output,
                                cudaStream_t stream) {
  launch(block_sum_kernel<false>, blocks, threads, 0, stream, input, output);
}
void reverse_blocks(int64_t blocks, unsigned threads, int64_t missing, const float* input, float* output,
                    cudaStream_t stream) {
  launch(reverse_kernel, blocks, threads, (threads - missing) * int64_t{sizeof(float)}, stream, input, output);
}
void count_values(int64_t count, const int* input, int* counts, int* ranks, cudaStream_t stream) {
  launch(count_kernel, ceil_div(count, 128), 128, 0, stream, count, input, counts, ranks);
}
void vote(unsigned threads, const int* input, unsigned* votes, int* any, int* all, cudaStream_t stream) {
  launch(vote_kernel, 1, threads, 0, stream, input, votes, any, all);
}
void multiply_tile(const uint16_t* a, const uint16_t* b, float* c, bool wait, cudaStream_t stream) {
  launch(wait ? multiply_kernel<true> : multiply_kernel<false>, 1, 32, (256 + 128) * 2, stream, a, b, c);
}
void some_threads_leave(unsigned threads, cudaStream_t stream) { launch(leaving_kernel, 2, threads, 0, stream); }
void barriers_in_branches(unsigned threads, cudaStream_t stream) { launch(branching_kernel, 1, threads, 0, stream); }
void shuffle_in_branch(cudaStream_t stream) { launch(shuffling_branch_kernel, 1, 32, 0, stream); }
void shuffle_with_foreign_mask(cudaStream_t stream) { launch(foreign_mask_kernel, 1, 32, 0, stream); }
void shuffle_from_outside_mask(cudaStream_t stream) { launch(outside_mask_kernel, 1, 32, 0, stream); }
void write_static_array(int element, int* output, cudaStream_t stream) {
  launch(static_array_kernel, 1, 1, 0, stream, element, output);
}
void take_turns(int64_t blocks, bool ascending, int32_t* turn, int32_t* order, cudaStream_t stream) {
  launch(ascending ? turns_kernel<true> : turns_kernel<false>, blocks, 32, 0, stream, turn, order);
}
void write_one(float* output, int64_t offset, bool wide, cudaStream_t stream) {
  launch(write_kernel, 1, 1, 0, stream, output, offset, wide);
}

}  // namespace quintet::testing
