#include "kernels/cpu/add_norm.h"

#include <cmath>

#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/rows.h"

namespace quintet::kernels::cpu {
namespace {

template <typename A>
struct Statistics {
  A mean = 0, inverse_deviation = 0;
};

// Two passes, so that a large mean costs no digits of the variance.
template <typename T, typename A = Arithmetic<T>>
Statistics<A> statistics_of(Norm norm, const T* x, int64_t width, double epsilon) {
  const A inverse_width = static_cast<A>(1.0 / static_cast<double>(width));
  A mean = 0;
  if (norm == Norm::layer) {
    A sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < width; ++c) sum += widen(x[c]);
    mean = sum * inverse_width;
  }
  A squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t c = 0; c < width; ++c) squares += (widen(x[c]) - mean) * (widen(x[c]) - mean);
  return {mean, A{1} / std::sqrt(squares * inverse_width + static_cast<A>(epsilon))};
}

template <typename T>
void normalise_row(const T* x, Statistics<Arithmetic<T>> s, const T* weight, const T* bias, int64_t width, T* output) {
  if (bias != nullptr) {
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) {
      output[c] = round_to<T>((widen(x[c]) - s.mean) * s.inverse_deviation * widen(weight[c]) + widen(bias[c]));
    }
  } else {
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) {
      output[c] = round_to<T>((widen(x[c]) - s.mean) * s.inverse_deviation * widen(weight[c]));
    }
  }
}

}  // namespace

template <typename T>
void add_norm_forward(const AddNormForwardArgs<T>& args) {
  const int64_t width = args.width;
  for_rows(args.threads, args.rows, width, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const T* x = args.residual + t * width;
      if (args.branch != nullptr) {
        T* sum = args.residual_output + t * width;
        add_dropout_row(args.dropout, t, width, x, args.branch + t * width, sum);
        x = sum;
      }
      const Statistics<Arithmetic<T>> statistics = statistics_of(args.norm, x, width, args.epsilon);
      normalise_row(x, statistics, args.weight, args.bias, width, args.output + t * width);
      if (args.norm == Norm::layer) args.mean[t] = statistics.mean;
      args.inverse_deviation[t] = statistics.inverse_deviation;
    }
  });
}

// With n = (x - mean) * inverse and g = d_output * weight: d_x = inverse * (g - average(g) - n * average(g n)), where
// the root-mean-square norm lacks the first average.
template <typename T>
void norm_backward_input(const NormBackwardArgs<T>& args) {
  using A = Arithmetic<T>;
  const int64_t width = args.width;
  const A inverse_width = static_cast<A>(1.0 / static_cast<double>(width));
  for_rows(args.threads, args.rows, width, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const A mean = args.norm == Norm::layer ? args.mean[t] : A{0};
      const A inverse = args.inverse_deviation[t];
      const T* x = args.input + t * width;
      const T* weight = args.weight;
      const T* d_output = args.d_output + t * width;
      T* d_input = args.d_input + t * width;
      A sum = 0, product = 0;
#pragma omp simd reduction(+ : sum, product)
      for (int64_t c = 0; c < width; ++c) {
        const A g = widen(d_output[c]) * widen(weight[c]);
        sum += g;
        product += g * ((widen(x[c]) - mean) * inverse);
      }
      const A average = args.norm == Norm::layer ? sum * inverse_width : A{0};
      product *= inverse_width;
      const A kept = args.accumulate ? A{1} : A{0};
#pragma omp simd
      for (int64_t c = 0; c < width; ++c) {
        const A n = (widen(x[c]) - mean) * inverse;
        const A d = inverse * (widen(d_output[c]) * widen(weight[c]) - average - n * product);
        d_input[c] = round_to<T>((kept != 0 ? widen(d_input[c]) : A{0}) + d);
      }
    }
  });
}

template <typename T, typename G>
void norm_backward_parameters(const NormBackwardArgs<T>& args, G* weight_gradient, G* bias_gradient) {
  using A = Arithmetic<T>;
  const int64_t width = args.width;
  add_column_sums<A>(args.threads, args.rows, width, weight_gradient, [&](int64_t t, int64_t c) {
    const A mean = args.norm == Norm::layer ? args.mean[t] : A{0};
    return widen(args.d_output[t * width + c]) *
           ((widen(args.input[t * width + c]) - mean) * args.inverse_deviation[t]);
  });
  if (bias_gradient != nullptr) column_sums(args.threads, args.d_output, args.rows, width, bias_gradient);
}

#define QUINTET_INSTANTIATE(T)                                                                        \
  template void add_norm_forward(const AddNormForwardArgs<T>&);                                       \
  template void norm_backward_input(const NormBackwardArgs<T>&);                                      \
  template void norm_backward_parameters(const NormBackwardArgs<T>&, Arithmetic<T>*, Arithmetic<T>*); \
  template void norm_backward_parameters(const NormBackwardArgs<T>&, bfloat16*, bfloat16*);
QUINTET_INSTANTIATE(bfloat16)
QUINTET_INSTANTIATE(float)
QUINTET_INSTANTIATE(double)
#undef QUINTET_INSTANTIATE

}  // namespace quintet::kernels::cpu
