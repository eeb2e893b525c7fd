// Fills, casts, rows transposed, scaling, sums of squares and checks of contiguous elements.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "lib/base/dtype.h"

namespace quintet::kernels::cuda {

// T: float, bfloat16, int32_t, int64_t, uint8_t.
template <typename T>
void fill(int64_t elements, T value, T* to, cudaStream_t stream);

// float to bfloat16, rounded to nearest even, or back.
template <typename From, typename To>
void cast(int64_t elements, const From* from, To* to, cudaStream_t stream);

// to[i][o] = from[o][i], runs of `bytes` each.
void transpose_rows(int64_t outer, int64_t inner, int64_t bytes, const void* from, void* to, cudaStream_t stream);

// T: float, bfloat16.
template <typename T>
void scale(int64_t elements, float factor, T* values, cudaStream_t stream);

// partial[i] = the sum of squares of the i-th run of kSquaresPerPartial elements, in fp64: whoever adds them exactly
// gets the same sum however the elements were cut into spans of whole runs. ceil_div(elements, kSquaresPerPartial)
// partial sums.
inline constexpr int64_t kSquaresPerPartial = 16384;
template <typename T>
void squared_norm(int64_t elements, const T* values, double* partial, cudaStream_t stream);

// *finite = 0 if some element is not finite; else it stays as it was.
template <typename T>
void check_finite(int64_t elements, const T* values, int32_t* finite, cudaStream_t stream);

}  // namespace quintet::kernels::cuda
