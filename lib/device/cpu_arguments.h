// From the operands of an operation to the arguments of CPU kernels; shapes are checked on the way.
#pragma once

#include "kernels/cpu/activation.h"
#include "kernels/cpu/add_norm.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/cross_entropy.h"
#include "kernels/cpu/dropout.h"
#include "kernels/cpu/embedding.h"
#include "kernels/cpu/rope_norm.h"
#include "kernels/cpu/router.h"
#include "kernels/cpu/row_moves.h"
#include "lib/device/device.h"
#include "lib/device/operands.h"

namespace quintet::device {

namespace kernels = quintet::kernels::cpu;

// function.template operator()<T, G>() with the types of activations and of a parameter's gradient, which are added in
// the arithmetic of T and kept in it or in bf16. A gradient that is absent counts as the former.
template <typename Function>
void visit_with_gradient(const Tensor& activations, const Tensor& gradient, Function&& function) {
  visit_storage_type(activations.dtype(), [&]<typename T>() {
    if (gradient && gradient.dtype() == DType::bf16) {
      function.template operator()<T, bfloat16>();
    } else {
      function.template operator()<T, kernels::Arithmetic<T>>();
    }
  });
}

// function.template operator()<T, R>() with the types of operands and of a result that is T or T's arithmetic.
template <typename Function>
void visit_with_result(const Tensor& operand, const Tensor& result, Function&& function) {
  visit_storage_type(operand.dtype(), [&]<typename T>() {
    if (result.dtype() == operand.dtype()) {
      function.template operator()<T, T>();
    } else {
      function.template operator()<T, kernels::Arithmetic<T>>();
    }
  });
}

inline kernels::ActivationKind kind_of(Activation activation) {
  return activation_kind<kernels::ActivationKind>(activation);
}
inline kernels::Norm kind_of(NormKind kind) { return norm_kind<kernels::Norm>(kind); }
inline kernels::DropoutMask mask_of(const Dropout& dropout, int64_t rows) {
  return dropout_mask<kernels::DropoutMask>(dropout, rows);
}

template <typename T>
kernels::EmbeddingArgs<T> embedding_args(const Tensor& tokens, int64_t vocabulary_start, const Tensor& positions,
                                         const Tensor& rows, const Tensor& table, const Tensor& position_table,
                                         int threads) {
  auto args =
      embedding_operands<kernels::EmbeddingArgs<T>>(tokens, vocabulary_start, positions, rows, table, position_table);
  args.threads = threads;
  return args;
}

template <typename T, typename Backward>
kernels::NormBackwardArgs<T> norm_backward_args(const Backward& op, int threads) {
  auto args = norm_backward_operands<kernels::NormBackwardArgs<T>, T, kernels::Arithmetic<T>>(op);
  args.threads = threads;
  return args;
}

template <typename T>
kernels::RopeNormArgs<T> rope_norm_args(const Tensor& heads, const Tensor& scale, double epsilon, const Tensor& cosine,
                                        const Tensor& sine, const Tensor& positions, const Tensor& inverse_rms,
                                        int threads) {
  auto args = rope_norm_operands<kernels::RopeNormArgs<T>, T, kernels::Arithmetic<T>>(heads, scale, epsilon, cosine,
                                                                                      sine, positions, inverse_rms);
  args.threads = threads;
  return args;
}

template <typename T>
kernels::CrossEntropyArgs<T> cross_entropy_args(const Tensor& logits, const Tensor& targets, int64_t vocabulary_start,
                                                int64_t valid, int threads) {
  auto args = cross_entropy_operands<kernels::CrossEntropyArgs<T>, T>(logits, targets, vocabulary_start, valid);
  args.threads = threads;
  return args;
}

inline kernels::AttentionShape attention_shape(const Tensor& query, const Tensor& key, int64_t first_query,
                                               int64_t first_key, const Tensor& document_starts) {
  return attention_operands<kernels::AttentionShape>(query, key, first_query, first_key, document_starts);
}
template <typename T>
kernels::HeadTensor<T> head_tensor(const Tensor& tensor) {
  return heads_of<kernels::HeadTensor, T>(tensor);
}

inline kernels::RouterShape router_shape(const Tensor& probabilities, const Tensor& log_sum_exp, const RouterRows& rows,
                                         int threads) {
  auto shape = router_operands<kernels::RouterShape>(probabilities, log_sum_exp, rows);
  shape.threads = threads;
  return shape;
}
inline kernels::RouterShape router_shape(const Tensor& probabilities, const Tensor& chosen, const Tensor& weights,
                                         const Tensor& log_sum_exp, const RouterRows& rows, bool normalize,
                                         int threads) {
  auto shape = router_operands<kernels::RouterShape>(probabilities, chosen, weights, log_sum_exp, rows, normalize);
  shape.threads = threads;
  return shape;
}

inline kernels::CombineShape combine_shape(const Tensor& input, const Tensor& index, const Tensor& rows, int threads) {
  auto shape = combine_operands<kernels::CombineShape>(input, index, rows);
  shape.threads = threads;
  return shape;
}

}  // namespace quintet::device
