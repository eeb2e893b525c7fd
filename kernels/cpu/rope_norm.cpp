#include "kernels/cpu/rope_norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/add_norm.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/scratch.h"
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

template <typename T>
void forward(const RopeNormArgs<T>& args, const T* input, T* inverse_rms, T* output) {
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
void turn_back(const RopeNormArgs<T>& args, T* gradient) {
  if (args.cosine == nullptr) return;
  const int64_t row = args.heads * args.width;
  for_rows(args.threads, args.tokens, row, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) rotate_token(args, t, gradient + t * row, T{-1});
  });
}

// gradient: of the norm's output.
template <typename T>
NormBackwardArgs<T> norm_of(const RopeNormArgs<T>& args, const T* input, const T* inverse_rms, T* gradient) {
  return {.norm = Norm::root_mean_square,
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
}

// In place.
template <typename T>
void backward_input(const RopeNormArgs<T>& args, const T* input, const T* inverse_rms, T* gradient) {
  turn_back(args, gradient);
  if (args.scale != nullptr) norm_backward_input(norm_of(args, input, inverse_rms, gradient));
}

std::vector<float> widened(const bfloat16* values, int64_t count) {
  std::vector<float> wide(values == nullptr ? 0 : static_cast<size_t>(count));
  for (size_t i = 0; i < wide.size(); ++i) wide[i] = widen(values[i]);
  return wide;
}

// Between norm and rotation nothing is rounded: tokens come in pieces of about a mebibyte in the type of arithmetic.
// f(piece, first token, its first element)
template <typename T, typename Function>
void for_pieces(const RopeNormArgs<T>& args, const Arithmetic<T>* scale, Function&& f) {
  const int64_t row = args.heads * args.width;
  const int64_t tokens = std::max<int64_t>(1, (int64_t{1} << 18) / std::max<int64_t>(1, row));
  for (int64_t t = 0; t < args.tokens; t += tokens) {
    f(RopeNormArgs<Arithmetic<T>>{.tokens = std::min(tokens, args.tokens - t),
                                  .heads = args.heads,
                                  .width = args.width,
                                  .scale = args.scale == nullptr ? nullptr : scale,
                                  .epsilon = args.epsilon,
                                  .cosine = args.cosine,
                                  .sine = args.sine,
                                  .table_rows = args.table_rows,
                                  .positions = args.positions == nullptr ? nullptr : args.positions + t,
                                  .threads = args.threads},
      t, t * row);
  }
}

// The values in the type of arithmetic.
template <typename T>
void widen_values(int threads, int64_t elements, const T* from, Arithmetic<T>* to) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    cast(threads, elements, from, to);
  } else {
    copy_bytes(threads, elements * int64_t{sizeof(T)}, from, to);
  }
}

}  // namespace

template <typename T>
void rope_norm_forward(const RopeNormArgs<T>& args, const T* input, Arithmetic<T>* inverse_rms, T* output) {
  if constexpr (!std::is_same_v<T, bfloat16>) {
    forward(args, input, inverse_rms, output);
  } else {
    thread_local Scratch<float> scratch;
    const std::vector<float> scale = widened(args.scale, args.width);
    for_pieces(args, scale.data(), [&](const RopeNormArgs<float>& piece, int64_t t, int64_t at) {
      const int64_t elements = piece.tokens * args.heads * args.width;
      float* wide = scratch.get(elements);
      cast(args.threads, elements, input + at, wide);
      forward(piece, wide, args.scale == nullptr ? nullptr : inverse_rms + t * args.heads, wide);
      cast(args.threads, elements, wide, output + at);
    });
  }
}

template <typename T>
void rope_norm_backward_input(const RopeNormArgs<T>& args, const T* input, const Arithmetic<T>* inverse_rms,
                              const T* d_output, T* d_input) {
  if constexpr (!std::is_same_v<T, bfloat16>) {
    const int64_t elements = args.tokens * args.heads * args.width;
    if (d_input != d_output) widen_values(args.threads, elements, d_output, d_input);
    backward_input(args, input, inverse_rms, d_input);
  } else {
    thread_local Scratch<float> scratch, input_scratch;
    const std::vector<float> scale = widened(args.scale, args.width);
    for_pieces(args, scale.data(), [&](const RopeNormArgs<float>& piece, int64_t t, int64_t at) {
      const int64_t elements = piece.tokens * args.heads * args.width;
      float* wide = scratch.get(elements);
      cast(args.threads, elements, d_output + at, wide);
      const float* inverse = nullptr;
      float* wide_input = nullptr;
      if (args.scale != nullptr) {
        inverse = inverse_rms + t * args.heads;
        wide_input = input_scratch.get(elements);
        cast(args.threads, elements, input + at, wide_input);
      }
      backward_input(piece, wide_input, inverse, wide);
      cast(args.threads, elements, wide, d_input + at);
    });
  }
}

template <typename T, typename G>
void rope_norm_backward_scale(const RopeNormArgs<T>& args, const T* input, const Arithmetic<T>* inverse_rms,
                              const T* d_output, G* scale_gradient) {
  using A = Arithmetic<T>;
  thread_local Scratch<A> scratch, input_scratch;
  std::vector<A> sums(static_cast<size_t>(args.width));
  for_pieces<T>(args, nullptr, [&](const RopeNormArgs<A>& piece, int64_t t, int64_t at) {
    const int64_t elements = piece.tokens * args.heads * args.width;
    A* gradient = scratch.get(elements);
    A* wide_input = input_scratch.get(elements);
    widen_values(args.threads, elements, d_output + at, gradient);
    widen_values(args.threads, elements, input + at, wide_input);
    turn_back(piece, gradient);
    norm_backward_parameters(norm_of<A>(piece, wide_input, inverse_rms + t * args.heads, gradient), sums.data(),
                             static_cast<A*>(nullptr));
  });
  for (size_t c = 0; c < sums.size(); ++c) scale_gradient[c] = round_to<G>(widen(scale_gradient[c]) + sums[c]);
}

#define QUINTET_INSTANTIATE(T)                                                                                  \
  template void rope_norm_forward(const RopeNormArgs<T>&, const T*, Arithmetic<T>*, T*);                        \
  template void rope_norm_backward_input(const RopeNormArgs<T>&, const T*, const Arithmetic<T>*, const T*, T*); \
  template void rope_norm_backward_scale(const RopeNormArgs<T>&, const T*, const Arithmetic<T>*, const T*,      \
                                         Arithmetic<T>*);                                                       \
  template void rope_norm_backward_scale(const RopeNormArgs<T>&, const T*, const Arithmetic<T>*, const T*, bfloat16*);
QUINTET_INSTANTIATE(bfloat16)
QUINTET_INSTANTIATE(float)
QUINTET_INSTANTIATE(double)
#undef QUINTET_INSTANTIATE

}  // namespace quintet::kernels::cpu
