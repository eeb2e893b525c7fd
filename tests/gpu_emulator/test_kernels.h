// Kernels that do right and wrong on purpose. Each launcher takes a stream; names say what the kernel does.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace quintet::testing {

// output[i] = a * i for i < count; no barrier.
void fill_ramp(int64_t count, float a, float* output, cudaStream_t stream);
// output[block] = sum of its 1 to 1024 threads' input, by shuffles and static shared memory.
void block_sums(int64_t blocks, unsigned threads, const float* input, float* output, cudaStream_t stream);
// The same, with no barrier between the partial sums and their reader.
void block_sums_without_barrier(int64_t blocks, unsigned threads, const float* input, float* output,
                                cudaStream_t stream);
// output = input backwards within each block, through dynamic shared memory of threads + `missing` elements.
void reverse_blocks(int64_t blocks, unsigned threads, int64_t missing, const float* input, float* output,
                    cudaStream_t stream);
// counts[input[i]] += 1 by atomics; ranks[i] = place of i among equal values within its warp.
void count_values(int64_t count, const int* input, int* counts, int* ranks, cudaStream_t stream);
// votes[warp] = lanes whose input is positive; any, all likewise.
void vote(unsigned threads, const int* input, unsigned* votes, int* any, int* all, cudaStream_t stream);
// c [16, 8] = a [16, 16] b [16, 8] with a, b in bf16, row-major, staged by cp.async and read by ldmatrix.
void multiply_tile(const uint16_t* a, const uint16_t* b, float* c, bool wait, cudaStream_t stream);

// The faults: each is reported.
void some_threads_leave(unsigned threads, cudaStream_t stream);
void barriers_in_branches(unsigned threads, cudaStream_t stream);
void shuffle_in_branch(cudaStream_t stream);
void shuffle_with_foreign_mask(cudaStream_t stream);
void shuffle_from_outside_mask(cudaStream_t stream);
// Writes and reads an element of a static array of 8 in shared memory.
void write_static_array(int element, int* output, cudaStream_t stream);
// order[i] = the block whose turn is the i-th: blocks take turns upwards or, a fault, downwards.
void take_turns(int64_t blocks, bool ascending, int32_t* turn, int32_t* order, cudaStream_t stream);
// output[offset] = 1, as 4 bytes; then, with `wide`, 16 bytes.
void write_one(float* output, int64_t offset, bool wide, cudaStream_t stream);

}  // namespace quintet::testing
