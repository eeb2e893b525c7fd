// Two softmaxes over different keys made into one over both: with log-sum-exps a and b the outputs weigh exp(a) and
// exp(b), over their sum (Liu et al. 2023, Ring Attention).
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/attention.h"
#include "lib/base/parallel.h"

namespace quintet::kernels::cpu {
namespace {

template <typename T>
void merge_row(const T* partial, Arithmetic<T> further, int64_t width, Arithmetic<T>* output,
               Arithmetic<T>& log_sum_exp) {
  using A = Arithmetic<T>;
  constexpr A kNothing = -std::numeric_limits<A>::infinity();
  if (further == kNothing) {
    if (log_sum_exp == kNothing) std::fill_n(output, width, A{0});
    return;
  }
  if (log_sum_exp == kNothing) {
    for (int64_t i = 0; i < width; ++i) output[i] = widen(partial[i]);
    log_sum_exp = further;
    return;
  }
  const A larger = log_sum_exp > further ? log_sum_exp : further;  // NaN comes through either way
  const A kept = std::exp(log_sum_exp - larger), added = std::exp(further - larger);
  const A sum = kept + added;
  for (int64_t i = 0; i < width; ++i) output[i] = (output[i] * kept + widen(partial[i]) * added) / sum;
  log_sum_exp = larger + std::log(sum);
}

}  // namespace

template <typename T>
void attention_merge(const AttentionMergeArgs<T>& args) {
  const AttentionShape& shape = args.shape;
  parallel_for(args.threads, shape.batch * shape.heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / shape.heads, head = i % shape.heads;
      for (int64_t q = 0; q < shape.query_rows; ++q) {
        const int64_t row = i * shape.query_rows + q;
        merge_row(args.partial_output.at(b, head) + q * args.partial_output.row_stride, args.partial_log_sum_exp[row],
                  shape.head_dim, args.output.at(b, head) + q * args.output.row_stride, args.log_sum_exp[row]);
      }
    }
  });
}

template void attention_merge(const AttentionMergeArgs<float>&);
template void attention_merge(const AttentionMergeArgs<double>&);
template void attention_merge(const AttentionMergeArgs<bfloat16>&);

}  // namespace quintet::kernels::cpu
