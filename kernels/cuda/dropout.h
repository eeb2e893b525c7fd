// Inverted dropout keyed by identity, as kernels/cpu/dropout.h says it: element (t, channel) of a [rows, width] tensor
// has index i = rows[t] * width + channel and is kept when word i mod 4 of Philox block i / 4 is at or above
// probability * 2^32; kept elements are scaled by 1 / (1 - probability).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace quintet::kernels::cuda {

struct DropoutMask {
  double probability = 0;  // in [0, 1); 0: identity, rows is not read
  uint64_t seed = 0, stream = 0;
  const int64_t* rows = nullptr;  // [T], on the device
};

// output[t, c] = residual[t, c] + dropped branch[t, c]; a null residual counts as zero. output may be either operand.
// T: float, bfloat16.
template <typename T>
void add_dropout(const DropoutMask& mask, int64_t rows, int64_t width, const T* residual, const T* branch, T* output,
                 cudaStream_t stream);

}  // namespace quintet::kernels::cuda
