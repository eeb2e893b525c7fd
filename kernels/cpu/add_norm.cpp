#include "kernels/cpu/add_norm.h"

#include <cmath>

#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/rows.h"

namespace quintet::kernels::cpu {
namespace {

template <typename T>
struct Statistics {
  T mean = 0, inverse_deviation = 0;
};

// Two passes, so that a large mean costs no digits of the variance.
template <typename T>
Statistics<T> statistics_of(Norm norm, const T* x, int64_t width, double epsilon) {
  const T inverse_width = static_cast<T>(1.0 / static_cast<double>(width));
  T mean = 0;
  if (norm == Norm::layer) {
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < width; ++c) sum += x[c];
    mean = sum * inverse_width;
  }
  T squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t c = 0; c < width; ++c) squares += (x[c] - mean) * (x[c] - mean);
  return {mean, T{1} / std::sqrt(squares * inverse_width + static_cast<T>(epsilon))};
}

template <typename T>
void normalise_row(const T* x, Statistics<T> s, const T* weight, const T* bias, int64_t width, T* output) {
  if (bias != nullptr) {
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) output[c] = (x[c] - s.mean) * s.inverse_deviation * weight[c] + bias[c];
  } else {
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) output[c] = (x[c] - s.mean) * s.inverse_deviation * weight[c];
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
      const Statistics<T> statistics = statistics_of(args.norm, x, width, args.epsilon);
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
  const int64_t width = args.width;
  const T inverse_width = static_cast<T>(1.0 / static_cast<double>(width));
  for_rows(args.threads, args.rows, width, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const T mean = args.norm == Norm::layer ? args.mean[t] : T{0};
      const T inverse = args.inverse_deviation[t];
      const T* x = args.input + t * width;
      const T* weight = args.weight;
      const T* d_output = args.d_output + t * width;
      T* d_input = args.d_input + t * width;
      T sum = 0, product = 0;
#pragma omp simd reduction(+ : sum, product)
      for (int64_t c = 0; c < width; ++c) {
        const T g = d_output[c] * weight[c];
        sum += g;
        product += g * ((x[c] - mean) * inverse);
      }
      const T average = args.norm == Norm::layer ? sum * inverse_width : T{0};
      product *= inverse_width;
      const T kept = args.accumulate ? T{1} : T{0};
#pragma omp simd
      for (int64_t c = 0; c < width; ++c) {
        const T n = (x[c] - mean) * inverse;
        const T d = inverse * (d_output[c] * weight[c] - average - n * product);
        d_input[c] = (kept != 0 ? d_input[c] : T{0}) + d;
      }
    }
  });
}

template <typename T>
void norm_backward_parameters(const NormBackwardArgs<T>& args, T* weight_gradient, T* bias_gradient) {
  const int64_t width = args.width;
  add_column_sums(args.threads, args.rows, width, weight_gradient, [&](int64_t t, int64_t c) {
    const T mean = args.norm == Norm::layer ? args.mean[t] : T{0};
    return args.d_output[t * width + c] * ((args.input[t * width + c] - mean) * args.inverse_deviation[t]);
  });
  if (bias_gradient != nullptr) column_sums(args.threads, args.d_output, args.rows, width, bias_gradient);
}

template void add_norm_forward(const AddNormForwardArgs<float>&);
template void add_norm_forward(const AddNormForwardArgs<double>&);
template void norm_backward_input(const NormBackwardArgs<float>&);
template void norm_backward_input(const NormBackwardArgs<double>&);
template void norm_backward_parameters(const NormBackwardArgs<float>&, float*, float*);
template void norm_backward_parameters(const NormBackwardArgs<double>&, double*, double*);

}  // namespace quintet::kernels::cpu
