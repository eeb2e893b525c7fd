#include "kernels/cpu/column_sums.h"

namespace quintet::kernels::cpu {

template <typename T>
void column_sums(int threads, const T* values, int64_t rows, int64_t columns, T* gradient) {
  add_column_sums(threads, rows, columns, gradient, [=](int64_t t, int64_t c) { return values[t * columns + c]; });
}

template void column_sums(int, const float*, int64_t, int64_t, float*);
template void column_sums(int, const double*, int64_t, int64_t, double*);

}  // namespace quintet::kernels::cpu
