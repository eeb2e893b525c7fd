// The gated activation silu(gate) * up, silu(x) = x sigmoid(x) (Shazeer 2020). T: float, bfloat16.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace quintet::kernels::cuda {

// output = silu(gate) * up.
template <typename T>
void swiglu_forward(int64_t elements, const T* gate, const T* up, T* output, cudaStream_t stream);
// d_gate and d_up may be gate, up or d_output.
template <typename T>
void swiglu_backward(int64_t elements, const T* gate, const T* up, const T* d_output, T* d_gate, T* d_up,
                     cudaStream_t stream);

}  // namespace quintet::kernels::cuda
