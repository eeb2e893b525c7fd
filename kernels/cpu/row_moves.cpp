#include "kernels/cpu/row_moves.h"

#include <algorithm>

#include "kernels/cpu/rows.h"

namespace quintet::kernels::cpu {

template <typename T>
void gather_rows(int threads, int64_t rows, int64_t width, const T* input, const int32_t* index, T* output) {
  for_rows(threads, rows, width, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (index[i] == kNoRow) {
        std::fill_n(output + i * width, width, T{});
      } else {
        std::copy_n(input + int64_t{index[i]} * width, width, output + i * width);
      }
    }
  });
}

template <typename T>
void combine_rows(const CombineShape& shape, const T* input, const int32_t* index, const Arithmetic<T>* weights,
                  const Arithmetic<T>* addend, T* output) {
  using A = Arithmetic<T>;
  constexpr int64_t kBlock = 512;  // columns whose sums stay in the first-level cache
  const int64_t width = shape.width;
  for_rows(shape.threads, shape.rows, shape.picks * width, [&](int64_t begin, int64_t end) {
    A sums[kBlock];
    for (int64_t t = begin; t < end; ++t)
      for (int64_t first = 0; first < width; first += kBlock) {
        const int64_t count = std::min(kBlock, width - first);
        if (addend == nullptr) {
          std::fill_n(sums, count, A{});
        } else {
          std::copy_n(addend + t * width + first, count, sums);
        }
        for (int64_t j = 0; j < shape.picks; ++j) {
          const int64_t slot = t * shape.picks + j;
          if (index[slot] == kNoRow) continue;
          const A weight = weights == nullptr ? A{1} : weights[slot];
          const T* row = input + int64_t{index[slot]} * width + first;
#pragma omp simd
          for (int64_t c = 0; c < count; ++c) sums[c] += weight * widen(row[c]);
        }
        T* to = output + t * width + first;
#pragma omp simd
        for (int64_t c = 0; c < count; ++c) to[c] = round_to<T>(sums[c]);
      }
  });
}

template <typename T>
void combine_rows_backward(const CombineShape& shape, const T* input, const int32_t* index,
                           const Arithmetic<T>* weights, const T* d_output, T* d_input, Arithmetic<T>* d_weights) {
  using A = Arithmetic<T>;
  const int64_t width = shape.width;
  for_rows(shape.threads, shape.rows, shape.picks * width, [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin * shape.picks; slot < end * shape.picks; ++slot) {
      d_weights[slot] = 0;
      if (index[slot] == kNoRow) continue;
      const A weight = weights[slot];
      const T* from = d_output + slot / shape.picks * width;
      const T* row = input + int64_t{index[slot]} * width;
      T* to = d_input + int64_t{index[slot]} * width;
      A product = 0;
#pragma omp simd reduction(+ : product)
      for (int64_t c = 0; c < width; ++c) {
        product += widen(from[c]) * widen(row[c]);
        to[c] = round_to<T>(weight * widen(from[c]));
      }
      d_weights[slot] = product;
    }
  });
}

#define QUINTET_INSTANTIATE(T)                                                                                       \
  template void gather_rows(int, int64_t, int64_t, const T*, const int32_t*, T*);                                    \
  template void combine_rows(const CombineShape&, const T*, const int32_t*, const Arithmetic<T>*,                    \
                             const Arithmetic<T>*, T*);                                                              \
  template void combine_rows_backward(const CombineShape&, const T*, const int32_t*, const Arithmetic<T>*, const T*, \
                                      T*, Arithmetic<T>*);
QUINTET_INSTANTIATE(bfloat16)
QUINTET_INSTANTIATE(float)
QUINTET_INSTANTIATE(double)
#undef QUINTET_INSTANTIATE

}  // namespace quintet::kernels::cpu
