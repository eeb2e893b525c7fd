// Matrix products of row-major matrices in fp32 and fp64.
#pragma once

#include <cstdint>

namespace quintet::kernels::cpu {

// c [m, n] = op(a) [m, k] op(b) [k, n], or += with `accumulate`. A transposed operand lies in memory as [k, m] or
// [n, k]. The leading dimensions are those in memory. c overlaps neither operand.
// At equal threads neither alignment nor what else runs changes a bit. Our own products (fp64) do not depend on the
// number of threads either.
template <typename T>
struct MatmulArgs {
  int64_t m = 0, n = 0, k = 0;
  const T* a = nullptr;
  int64_t lda = 0;
  bool transpose_a = false;
  const T* b = nullptr;
  int64_t ldb = 0;
  bool transpose_b = false;
  T* c = nullptr;
  int64_t ldc = 0;
  bool accumulate = false;
  int threads = 1;
};

template <typename T>
void matmul(const MatmulArgs<T>& args);

}  // namespace quintet::kernels::cpu
