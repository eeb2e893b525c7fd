// Softmax cross entropy over a shard of the vocabulary, from three numbers a row that ranks can combine.
#pragma once

#include <cstdint>

#include "kernels/cpu/storage.h"
#include "lib/base/exact_sum.h"

namespace quintet::kernels::cpu {

// logits [rows, columns]; the shard's columns are vocabulary entries from vocabulary_start on, those from `valid` on
// are padding and never read. targets [rows]: an entry of the whole vocabulary, or -1 where the row does not count.
template <typename T>
struct CrossEntropyArgs {
  int64_t rows = 0, columns = 0, valid = 0;
  int64_t vocabulary_start = 0;
  const int32_t* targets = nullptr;
  T* logits = nullptr;
  int threads = 1;
};

// maximum[t] of the row (-inf without valid columns), sum_exp[t] of exp(logit - maximum), and the target's logit, 0
// where the target lies in another shard or nowhere. Logits of -inf have probability 0; NaN and +inf make the sum NaN.
template <typename T>
void cross_entropy_statistics(const CrossEntropyArgs<T>& args, Arithmetic<T>* maximum, Arithmetic<T>* sum_exp,
                              Arithmetic<T>* target_logit);

// From shards [shards, 3, rows], the three numbers of each shard of a vocabulary, to those of the whole: the largest
// maximum, the sum in ascending order of sum_exp * exp(maximum - largest), the sum of the target logits. The results
// lie apart from `shards`.
template <typename T>
void cross_entropy_merge(int threads, int64_t shards, int64_t rows, const T* statistics, T* maximum, T* sum_exp,
                         T* target_logit);

// logits become (softmax - one_hot) * scale in place, given the statistics of the whole vocabulary; rows that do not
// count and padding become 0.
template <typename T>
void cross_entropy_gradient(const CrossEntropyArgs<T>& args, const Arithmetic<T>* maximum, const Arithmetic<T>* sum_exp,
                            double scale);

// Adds maximum + log(sum_exp) - target_logit, in fp64, of each row with a target.
template <typename T>
void cross_entropy_sum(int64_t rows, const int32_t* targets, const T* maximum, const T* sum_exp, const T* target_logit,
                       ExactSum& sum);

}  // namespace quintet::kernels::cpu
