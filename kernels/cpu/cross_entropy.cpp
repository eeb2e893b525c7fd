#include "kernels/cpu/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"

namespace quintet::kernels::cpu {
namespace {

// The target's column in this shard, or -1.
template <typename T>
int64_t target_column(const CrossEntropyArgs<T>& args, int64_t t) {
  const int64_t column = args.targets[t] - args.vocabulary_start;
  return args.targets[t] >= 0 && column >= 0 && column < args.valid ? column : -1;
}

template <typename T, typename A = Arithmetic<T>>
A row_maximum(const T* row, int64_t count) {
  A maximum = -std::numeric_limits<A>::infinity();
#pragma omp simd reduction(max : maximum)
  for (int64_t c = 0; c < count; ++c) maximum = widen(row[c]) > maximum ? widen(row[c]) : maximum;
  return maximum;
}

template <typename T, typename A>
A row_sum_exp(const T* row, int64_t count, A maximum) {
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < count; ++c) sum += exponential(widen(row[c]) - maximum);
  return sum;
}

// What a row's logits are lowered by. In a row of -inf every difference would be NaN: its maximum is taken as 0, which
// keeps a NaN visible.
template <typename T>
T shift_of(T maximum) {
  return maximum == -std::numeric_limits<T>::infinity() ? T{0} : maximum;
}

}  // namespace

template <typename T>
void cross_entropy_statistics(const CrossEntropyArgs<T>& args, Arithmetic<T>* maximum, Arithmetic<T>* sum_exp,
                              Arithmetic<T>* target_logit) {
  for_rows(args.threads, args.rows, args.columns, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const T* row = args.logits + t * args.columns;
      maximum[t] = row_maximum(row, args.valid);
      sum_exp[t] = row_sum_exp(row, args.valid, shift_of(maximum[t]));
      const int64_t target = target_column(args, t);
      target_logit[t] = target < 0 ? 0 : widen(row[target]);
    }
  });
}

template <typename T>
void cross_entropy_merge(int threads, int64_t shards, int64_t rows, const T* statistics, T* maximum, T* sum_exp,
                         T* target_logit) {
  for_rows(threads, rows, shards, [&](int64_t begin, int64_t end) {
    std::fill(maximum + begin, maximum + end, -std::numeric_limits<T>::infinity());
    std::fill(sum_exp + begin, sum_exp + end, T{0});
    std::fill(target_logit + begin, target_logit + end, T{0});
    for (int64_t shard = 0; shard < shards; ++shard) {
      const T* part = statistics + shard * 3 * rows;
#pragma omp simd
      for (int64_t t = begin; t < end; ++t) maximum[t] = part[t] > maximum[t] ? part[t] : maximum[t];
    }
    for (int64_t shard = 0; shard < shards; ++shard) {
      const T *part_maximum = statistics + shard * 3 * rows, *part_sum = part_maximum + rows,
              *part_target = part_sum + rows;
#pragma omp simd
      for (int64_t t = begin; t < end; ++t) {
        sum_exp[t] += part_sum[t] * exponential(part_maximum[t] - shift_of(maximum[t]));
        target_logit[t] += part_target[t];
      }
    }
  });
}

template <typename T>
void cross_entropy_gradient(const CrossEntropyArgs<T>& args, const Arithmetic<T>* maximum, const Arithmetic<T>* sum_exp,
                            double scale) {
  using A = Arithmetic<T>;
  for_rows(args.threads, args.rows, args.columns, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      T* row = args.logits + t * args.columns;
      if (args.targets[t] < 0) {
        std::fill_n(row, args.columns, T{});
        continue;
      }
      const A factor = static_cast<A>(scale) / sum_exp[t];
      const A most = maximum[t];
      const int64_t target = target_column(args, t);
      const A target_logit = target < 0 ? 0 : widen(row[target]);
#pragma omp simd
      for (int64_t c = 0; c < args.valid; ++c) row[c] = round_to<T>(exponential(widen(row[c]) - most) * factor);
      std::fill(row + args.valid, row + args.columns, T{});
      if (target >= 0) row[target] = round_to<T>(exponential(target_logit - most) * factor - static_cast<A>(scale));
    }
  });
}

template <typename T>
void cross_entropy_sum(int64_t rows, const int32_t* targets, const T* maximum, const T* sum_exp, const T* target_logit,
                       ExactSum& sum) {
  for (int64_t t = 0; t < rows; ++t) {
    if (targets[t] < 0) continue;
    sum.add(static_cast<double>(maximum[t]) + std::log(static_cast<double>(sum_exp[t])) -
            static_cast<double>(target_logit[t]));
  }
}

#define QUINTET_INSTANTIATE_LOGITS(T, A)                                          \
  template void cross_entropy_statistics(const CrossEntropyArgs<T>&, A*, A*, A*); \
  template void cross_entropy_gradient(const CrossEntropyArgs<T>&, const A*, const A*, double);
QUINTET_INSTANTIATE_LOGITS(bfloat16, float)
QUINTET_INSTANTIATE_LOGITS(float, float)
QUINTET_INSTANTIATE_LOGITS(double, double)
#undef QUINTET_INSTANTIATE_LOGITS
#define QUINTET_INSTANTIATE(T)                                                    \
  template void cross_entropy_merge(int, int64_t, int64_t, const T*, T*, T*, T*); \
  template void cross_entropy_sum(int64_t, const int32_t*, const T*, const T*, const T*, ExactSum&);
QUINTET_INSTANTIATE(float)
QUINTET_INSTANTIATE(double)
#undef QUINTET_INSTANTIATE

}  // namespace quintet::kernels::cpu
