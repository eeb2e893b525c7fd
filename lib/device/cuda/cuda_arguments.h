// From the operands of an operation to the arguments of CUDA kernels; shapes are checked on the way.
#pragma once

#include "kernels/cuda/activation.h"
#include "kernels/cuda/add_norm.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/cross_entropy.h"
#include "kernels/cuda/dropout.h"
#include "kernels/cuda/embedding.h"
#include "kernels/cuda/rope_norm.h"
#include "lib/device/operands.h"

namespace quintet::device::cuda {

namespace kernels = quintet::kernels::cuda;

// Calls function.template operator()<T>() with the element type of a tensor that kernels compute with.
template <typename Function>
decltype(auto) visit_element_type(DType dtype, Function&& function) {
  if (dtype == DType::bf16) return function.template operator()<bfloat16>();
  QUINTET_CHECK(dtype == DType::fp32, "{} is not a compute type of this device", name_of(dtype));
  return function.template operator()<float>();
}

// function.template operator()<T, G>() with the types of activations and of a parameter's gradient, which are added in
// fp32 and kept in it or, beside activations of bf16, in bf16. A gradient that is absent counts as fp32.
template <typename Function>
void visit_with_gradient(const Tensor& activations, const Tensor& gradient, Function&& function) {
  if (!gradient || gradient.dtype() == DType::fp32) {
    return visit_element_type(activations.dtype(), [&]<typename T>() { function.template operator()<T, float>(); });
  }
  QUINTET_CHECK(activations.dtype() == DType::bf16 && gradient.dtype() == DType::bf16, "gradients of {} beside {}",
                name_of(gradient.dtype()), name_of(activations.dtype()));
  function.template operator()<bfloat16, bfloat16>();
}

// function.template operator()<T, R>() with the types of operands and of a result that is T or fp32.
template <typename Function>
void visit_with_result(const Tensor& operand, const Tensor& result, Function&& function) {
  visit_element_type(operand.dtype(), [&]<typename T>() {
    if (result.dtype() == operand.dtype()) {
      function.template operator()<T, T>();
    } else {
      function.template operator()<T, float>();
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

template <typename T, typename Backward>
kernels::NormBackwardArgs<T> norm_backward_args(const Backward& op) {
  return norm_backward_operands<kernels::NormBackwardArgs<T>, T, float>(op);
}

template <typename T>
kernels::RopeNormArgs<T> rope_norm_args(const Tensor& heads, const Tensor& scale, double epsilon, const Tensor& cosine,
                                        const Tensor& sine, const Tensor& positions, const Tensor& inverse_rms) {
  return rope_norm_operands<kernels::RopeNormArgs<T>, T, float>(heads, scale, epsilon, cosine, sine, positions,
                                                                inverse_rms);
}

template <typename T>
kernels::CrossEntropyArgs<T> cross_entropy_args(const Tensor& logits, const Tensor& targets, int64_t vocabulary_start,
                                                int64_t valid) {
  return cross_entropy_operands<kernels::CrossEntropyArgs<T>, T>(logits, targets, vocabulary_start, valid);
}

inline kernels::AttentionShape attention_shape(const Tensor& query, const Tensor& key, int64_t first_query,
                                               int64_t first_key, const Tensor& document_starts) {
  return attention_operands<kernels::AttentionShape>(query, key, first_query, first_key, document_starts);
}
template <typename T>
kernels::HeadTensor<T> head_tensor(const Tensor& tensor) {
  return heads_of<kernels::HeadTensor, T>(tensor);
}

}  // namespace quintet::device::cuda
