#include "kernels/cpu/rope_norm.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/add_norm.h"
#include "kernels/cpu/rows.h"
#include "lib/base/error.h"

namespace quintet::kernels::cpu {
namespace {

// x turns by the angles of one table row; direction -1 turns back.
template <typename T>
void rotate(T* x, int64_t half, const T* cosine, const T* sine, T direction) {
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const T low = x[i], high = x[i + half], s = direction * sine[i];
    x[i] = low * cosine[i] - high * s;
    x[i + half] = high * cosine[i] + low * s;
  }
}

template <typename T>
void rotate_token(const RopeNormArgs<T>& args, int64_t t, T* heads, T direction) {
  const int64_t half = args.width / 2;
  const int64_t row = args.positions[t];
  QUINTET_CHECK(row >= 0 && row < args.table_rows, "position {} in a table of {} rows", row, args.table_rows);
  for (int64_t n = 0; n < args.heads; ++n) {
    rotate(heads + n * args.width, half, args.cosine + row * half, args.sine + row * half, direction);
  }
}

// output = x * inverse_rms * scale; returns inverse_rms.
template <typename T>
T normalise(const T* x, const T* scale, int64_t width, double epsilon, T* output) {
  T squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t c = 0; c < width; ++c) squares += x[c] * x[c];
  const T inverse =
      T{1} / std::sqrt(squares * static_cast<T>(1.0 / static_cast<double>(width)) + static_cast<T>(epsilon));
#pragma omp simd
  for (int64_t c = 0; c < width; ++c) output[c] = x[c] * inverse * scale[c];
  return inverse;
}

}  // namespace

template <typename T>
void rope_norm_forward(const RopeNormArgs<T>& args, const T* input, T* inverse_rms, T* output) {
  const int64_t row = args.heads * args.width;
  for_rows(args.threads, args.tokens, row, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const T* x = input + t * row;
      T* y = output + t * row;
      if (args.scale != nullptr) {
        for (int64_t n = 0; n < args.heads; ++n) {
          inverse_rms[t * args.heads + n] =
              normalise(x + n * args.width, args.scale, args.width, args.epsilon, y + n * args.width);
        }
      } else if (x != y) {
        std::copy_n(x, row, y);
      }
      if (args.cosine != nullptr) rotate_token(args, t, y, T{1});
    }
  });
}

template <typename T>
void rope_norm_backward(const RopeNormArgs<T>& args, const T* input, const T* inverse_rms, T* gradient,
                        T* scale_gradient) {
  if (args.cosine != nullptr) {
    const int64_t row = args.heads * args.width;
    for_rows(args.threads, args.tokens, row, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) rotate_token(args, t, gradient + t * row, T{-1});
    });
  }
  if (args.scale == nullptr) return;
  const NormBackwardArgs<T> norm = {.norm = Norm::root_mean_square,
                                    .rows = args.tokens * args.heads,
                                    .width = args.width,
                                    .input = input,
                                    .weight = args.scale,
                                    .mean = nullptr,
                                    .inverse_deviation = inverse_rms,
                                    .d_output = gradient,
                                    .d_input = gradient,
                                    .accumulate = false,
                                    .threads = args.threads};
  norm_backward_parameters(norm, scale_gradient, static_cast<T*>(nullptr));
  norm_backward_input(norm);
}

#define QUINTET_INSTANTIATE(T)                                               \
  template void rope_norm_forward(const RopeNormArgs<T>&, const T*, T*, T*); \
  template void rope_norm_backward(const RopeNormArgs<T>&, const T*, const T*, T*, T*);
QUINTET_INSTANTIATE(float)
QUINTET_INSTANTIATE(double)
#undef QUINTET_INSTANTIATE

}  // namespace quintet::kernels::cpu
