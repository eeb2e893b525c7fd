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

template <typename T>
T row_maximum(const T* row, int64_t count) {
  T maximum = -std::numeric_limits<T>::infinity();
#pragma omp simd reduction(max : maximum)
  for (int64_t c = 0; c < count; ++c) maximum = row[c] > maximum ? row[c] : maximum;
  return maximum;
}

template <typename T>
T row_sum_exp(const T* row, int64_t count, T maximum) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < count; ++c) sum += exponential(row[c] - maximum);
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
void cross_entropy_statistics(const CrossEntropyArgs<T>& args, T* maximum, T* sum_exp, T* target_logit) {
  for_rows(args.threads, args.rows, args.columns, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const T* row = args.logits + t * args.columns;
      maximum[t] = row_maximum(row, args.valid);
      sum_exp[t] = row_sum_exp(row, args.valid, shift_of(maximum[t]));
      const int64_t target = target_column(args, t);
      target_logit[t] = target < 0 ? T{0} : row[target];
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
void cross_entropy_gradient(const CrossEntropyArgs<T>& args, const T* maximum, const T* sum_exp, double scale) {
  for_rows(args.threads, args.rows, args.columns, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      T* row = args.logits + t * args.columns;
      if (args.targets[t] < 0) {
        std::fill_n(row, args.columns, T{0});
        continue;
      }
      const T factor = static_cast<T>(scale) / sum_exp[t];
      const T most = maximum[t];
#pragma omp simd
      for (int64_t c = 0; c < args.valid; ++c) row[c] = exponential(row[c] - most) * factor;
      std::fill(row + args.valid, row + args.columns, T{0});
      const int64_t target = target_column(args, t);
      if (target >= 0) row[target] -= static_cast<T>(scale);
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

#define QUINTET_INSTANTIATE(T)                                                                  \
  template void cross_entropy_statistics(const CrossEntropyArgs<T>&, T*, T*, T*);               \
  template void cross_entropy_merge(int, int64_t, int64_t, const T*, T*, T*, T*);               \
  template void cross_entropy_gradient(const CrossEntropyArgs<T>&, const T*, const T*, double); \
  template void cross_entropy_sum(int64_t, const int32_t*, const T*, const T*, const T*, ExactSum&);
QUINTET_INSTANTIATE(float)
QUINTET_INSTANTIATE(double)
#undef QUINTET_INSTANTIATE

}  // namespace quintet::kernels::cpu
