#include "kernels/cpu/router.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"

namespace quintet::kernels::cpu {
namespace {

// Returns the row's log-sum-exp.
template <typename T>
T softmax(const T* logits, int64_t count, T* probabilities) {
  T maximum = logits[0];
  for (int64_t e = 1; e < count; ++e) maximum = std::max(maximum, logits[e]);
  T sum = 0;
  for (int64_t e = 0; e < count; ++e) {
    probabilities[e] = exponential(logits[e] - maximum);
    sum += probabilities[e];
  }
  for (int64_t e = 0; e < count; ++e) probabilities[e] /= sum;
  return maximum + std::log(sum);
}

// The largest scores in descending order; NaN counts as the smallest.
template <typename T>
void choose_largest(const T* probabilities, const T* bias, int64_t experts, int64_t top_k, int32_t* chosen) {
  const auto score = [&](int64_t e) { return bias == nullptr ? probabilities[e] : probabilities[e] + bias[e]; };
  for (int64_t j = 0; j < top_k; ++j) {
    int64_t best = -1;
    for (int64_t e = 0; e < experts; ++e) {
      if (std::find(chosen, chosen + j, static_cast<int32_t>(e)) != chosen + j) continue;
      if (best < 0 || score(e) > score(best)) best = e;
    }
    chosen[j] = static_cast<int32_t>(best);
  }
}

template <typename T>
T sum_of_chosen(const T* probabilities, const int32_t* chosen, int64_t top_k) {
  T sum = 0;
  for (int64_t j = 0; j < top_k; ++j) sum += probabilities[chosen[j]];
  return sum;
}

}  // namespace

template <typename T>
void router_forward(const RouterShape& shape, const T* logits, const T* selection_bias, bool round_robin,
                    T* probabilities, int32_t* chosen, T* weights, T* log_sum_exp) {
  for_rows(shape.threads, shape.rows, shape.experts * (1 + shape.top_k), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      T* row = probabilities + t * shape.experts;
      int32_t* picks = chosen + t * shape.top_k;
      log_sum_exp[t] = softmax(logits + t * shape.experts, shape.experts, row);
      if (round_robin) {
        const int64_t first = shape.rows_of.position(t) * shape.top_k;
        for (int64_t j = 0; j < shape.top_k; ++j) picks[j] = static_cast<int32_t>((first + j) % shape.experts);
      } else {
        choose_largest(row, selection_bias, shape.experts, shape.top_k, picks);
      }
      const T divisor = shape.normalize ? sum_of_chosen(row, picks, shape.top_k) : T{1};
      for (int64_t j = 0; j < shape.top_k; ++j) weights[t * shape.top_k + j] = row[picks[j]] / divisor;
    }
  });
}

template <typename T>
void router_backward(const RouterShape& shape, const RouterGradient<T>& gradient) {
  for_rows(shape.threads, shape.rows, shape.experts, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const T* probabilities = gradient.probabilities + t * shape.experts;
      const int32_t* chosen = gradient.chosen + t * shape.top_k;
      const T* weights = gradient.weights + t * shape.top_k;
      const T* d_weights = gradient.d_weights + t * shape.top_k;
      // d_logits first holds the gradient of the probabilities.
      T* d_logits = gradient.d_logits + t * shape.experts;
      const T* loads = gradient.loads + shape.rows_of.sequence(t) * shape.experts;
      for (int64_t e = 0; e < shape.experts; ++e) d_logits[e] = static_cast<T>(gradient.balance_scale) * loads[e];
      T weighted = 0, divisor = 1;
      if (shape.normalize) {
        for (int64_t j = 0; j < shape.top_k; ++j) weighted += d_weights[j] * weights[j];
        divisor = sum_of_chosen(probabilities, chosen, shape.top_k);
      }
      for (int64_t j = 0; j < shape.top_k; ++j) d_logits[chosen[j]] += (d_weights[j] - weighted) / divisor;
      T mean = 0;
      for (int64_t e = 0; e < shape.experts; ++e) mean += d_logits[e] * probabilities[e];
      const T z = static_cast<T>(2 * gradient.z_scale) * gradient.log_sum_exp[t];
      for (int64_t e = 0; e < shape.experts; ++e) d_logits[e] = probabilities[e] * (d_logits[e] - mean + z);
    }
  });
}

template <typename T>
void router_losses(const RouterShape& shape, const T* probabilities, const T* loads, const T* log_sum_exp,
                   ExactSum& balance, ExactSum& z) {
  for (int64_t t = 0; t < shape.rows; ++t) {
    const T* row_loads = loads + shape.rows_of.sequence(t) * shape.experts;
    for (int64_t e = 0; e < shape.experts; ++e)
      balance.add(static_cast<double>(probabilities[t * shape.experts + e]) * static_cast<double>(row_loads[e]));
    const auto log_sum = static_cast<double>(log_sum_exp[t]);
    z.add(log_sum * log_sum);
  }
}

#define QUINTET_INSTANTIATE(T)                                                                      \
  template void router_forward(const RouterShape&, const T*, const T*, bool, T*, int32_t*, T*, T*); \
  template void router_backward(const RouterShape&, const RouterGradient<T>&);                      \
  template void router_losses(const RouterShape&, const T*, const T*, const T*, ExactSum&, ExactSum&);
QUINTET_INSTANTIATE(float)
QUINTET_INSTANTIATE(double)
#undef QUINTET_INSTANTIATE

}  // namespace quintet::kernels::cpu
