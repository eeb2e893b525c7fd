// Fills, copies, casts, scaling and checks of contiguous elements.
#pragma once

#include <cstdint>

#include "kernels/cpu/storage.h"
#include "lib/base/exact_sum.h"

namespace quintet::kernels::cpu {

// For any type of DType.
template <typename T>
void fill(int threads, int64_t elements, T value, T* to);
// Between fp64, fp32 and bf16, each rounded once to nearest even; bytes of one type are copied by copy_bytes.
template <typename From, typename To>
void cast(int threads, int64_t elements, const From* from, To* to);
void copy_bytes(int threads, int64_t bytes, const void* from, void* to);
// to[i][o] = from[o][i], runs of `bytes` each.
void transpose_rows(int threads, int64_t outer, int64_t inner, int64_t bytes, const void* from, void* to);

template <typename T>
void scale(int threads, int64_t elements, Arithmetic<T> factor, T* values);

template <typename T>
bool all_finite(int threads, int64_t elements, const T* values);

// Adds the squares of all values to `sum`, exactly.
template <typename T>
void squared_norm(int threads, int64_t elements, const T* values, ExactSum& sum);

}  // namespace quintet::kernels::cpu
