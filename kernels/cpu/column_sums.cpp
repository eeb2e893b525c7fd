#include "kernels/cpu/column_sums.h"

namespace quintet::kernels::cpu {

template <typename T, typename G>
void column_sums(int threads, const T* values, int64_t rows, int64_t columns, G* gradient) {
  add_column_sums<Arithmetic<T>>(threads, rows, columns, gradient,
                                 [=](int64_t t, int64_t c) { return widen(values[t * columns + c]); });
}

#define QUINTET_INSTANTIATE(T)                                                \
  template void column_sums(int, const T*, int64_t, int64_t, Arithmetic<T>*); \
  template void column_sums(int, const T*, int64_t, int64_t, bfloat16*);
QUINTET_INSTANTIATE(bfloat16)
QUINTET_INSTANTIATE(float)
QUINTET_INSTANTIATE(double)
#undef QUINTET_INSTANTIATE

}  // namespace quintet::kernels::cpu
