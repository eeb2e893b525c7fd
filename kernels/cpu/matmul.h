// Matrix products of row-major matrices.
#pragma once

#include <cstdint>

#include "kernels/cpu/storage.h"

namespace quintet::kernels::cpu {

// c [m, n] = op(a) [m, k] op(b) [k, n] + bias, or += with `accumulate`. A transposed operand lies in memory as [k, m]
// or [n, k]. The leading dimensions are those in memory. c overlaps no operand. Sums are in the arithmetic of T, and an
// element is rounded to C once, when it is complete.
// At equal threads neither alignment nor what else runs changes a bit. Our own products (fp64) do not depend on the
// number of threads either.
template <typename T, typename C = T>
struct MatmulArgs {
  int64_t m = 0, n = 0, k = 0;
  const T* a = nullptr;
  int64_t lda = 0;
  bool transpose_a = false;
  const T* b = nullptr;
  int64_t ldb = 0;
  bool transpose_b = false;
  const T* bias = nullptr;  // [n], or null; only where ldc is n
  C* c = nullptr;
  int64_t ldc = 0;
  bool accumulate = false;
  int threads = 1;
};

// C is T, its arithmetic or bf16.
template <typename T, typename C>
void matmul(const MatmulArgs<T, C>& args);

}  // namespace quintet::kernels::cpu
