// The sum of several buffers, for ranks that share one device.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <span>

namespace quintet::kernels::cuda {

inline constexpr int kMaxFolded = 256;

// output[i] = the sum over all inputs of input[i], in ascending order of the list, added in fp32 and rounded once.
// output may be one of the inputs. At least one and at most kMaxFolded inputs. T: float, bfloat16.
template <typename T>
void fold(int64_t elements, std::span<const T* const> inputs, T* output, cudaStream_t stream);

}  // namespace quintet::kernels::cuda
