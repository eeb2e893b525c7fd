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
  switch (activation) {
    case Activation::gelu: return kernels::ActivationKind::gelu;
    case Activation::gelu_exact: return kernels::ActivationKind::gelu_exact;
    case Activation::relu_squared: return kernels::ActivationKind::relu_squared;
    case Activation::none: break;
  }
  QUINTET_CHECK(false, "no kernel for activation {}", static_cast<int>(activation));
}

inline kernels::Norm kind_of(NormKind kind) {
  return kind == NormKind::layernorm ? kernels::Norm::layer : kernels::Norm::root_mean_square;
}

inline kernels::DropoutMask mask_of(const Dropout& dropout, int64_t rows) {
  QUINTET_CHECK(dropout.probability >= 0 && dropout.probability < 1, "dropout {}", dropout.probability);
  if (dropout.probability == 0) return {};
  require(dropout.rows, {rows}, "dropout.rows");
  return {dropout.probability, dropout.seed, dropout.stream, dropout.rows.as<int64_t>()};
}

// `rows` is [T, H]; the tables are values or their gradients.
template <typename T>
kernels::EmbeddingArgs<T> embedding_args(const Tensor& tokens, int64_t vocabulary_start, const Tensor& positions,
                                         const Tensor& rows, const Tensor& table, const Tensor& position_table,
                                         int threads) {
  const int64_t count = rows.size(0), width = rows.size(1);
  require(tokens, {count}, "tokens");
  require_rank(table, 2, "table");
  require(table, {table.size(0), width}, "table");
  if (position_table) {
    require_rank(position_table, 2, "position_table");
    require(position_table, {position_table.size(0), width}, "position_table");
    require(positions, {count}, "positions");
  }
  return {.tokens_count = count,
          .width = width,
          .tokens = tokens.as<int32_t>(),
          .vocabulary_start = vocabulary_start,
          .table_rows = table.size(0),
          .positions = positions.as<int32_t>(),
          .position_rows = position_table ? position_table.size(0) : 0,
          .threads = threads};
}

template <typename T>
kernels::RopeNormArgs<T> rope_norm_args(const Tensor& heads, const Tensor& scale, double epsilon, const Tensor& cosine,
                                        const Tensor& sine, const Tensor& positions, const Tensor& inverse_rms,
                                        int threads) {
  const int64_t tokens = heads.size(0), count = heads.size(1), width = heads.size(2);
  if (scale) {
    require(scale, {width}, "scale");
    require(inverse_rms, {tokens, count}, "inverse_rms");
  }
  if (cosine) {
    QUINTET_CHECK(width % 2 == 0, "a head of {} channels cannot be rotated", width);
    require_rank(cosine, 2, "cosine");
    require(cosine, {cosine.size(0), width / 2}, "cosine");
    require(sine, cosine.shape(), "sine");
    require(positions, {tokens}, "positions");
  }
  return {.tokens = tokens,
          .heads = count,
          .width = width,
          .scale = scale.as<T>(),
          .epsilon = epsilon,
          .cosine = cosine.as<kernels::Arithmetic<T>>(),
          .sine = sine.as<kernels::Arithmetic<T>>(),
          .table_rows = cosine ? cosine.size(0) : 0,
          .positions = positions.as<int32_t>(),
          .threads = threads};
}

inline void require_statistics(const CrossEntropyStatistics& op) {
  require_rank(op.logits, 2, "logits");
  const Shape rows = {op.logits.size(0)};
  require(op.targets, rows, "targets");
  require(op.maximum, rows, "maximum");
  require(op.sum_exp, rows, "sum_exp");
  require(op.target_logit, rows, "target_logit");
}

template <typename T>
kernels::CrossEntropyArgs<T> cross_entropy_args(const Tensor& logits, const Tensor& targets, int64_t vocabulary_start,
                                                int64_t valid, int threads) {
  require(targets, {logits.size(0)}, "targets");
  QUINTET_CHECK(valid >= 0 && valid <= logits.size(1), "{} valid columns of {}", valid, logits.size(1));
  return {.rows = logits.size(0),
          .columns = logits.size(1),
          .valid = valid,
          .vocabulary_start = vocabulary_start,
          .targets = targets.as<int32_t>(),
          .logits = logits.as<T>(),
          .threads = threads};
}

// query: [B, S_q, N, D]; key: [B, S_k, N_kv, D].
inline kernels::AttentionShape attention_shape(const Tensor& query, const Tensor& key, int64_t first_query,
                                               int64_t first_key, const Tensor& document_starts) {
  require_rank(query, 4, "query");
  require_rank(key, 4, "key");
  const int64_t batch = query.size(0), heads = query.size(2), head_dim = query.size(3);
  require(key, {batch, key.size(1), key.size(2), head_dim}, "key");
  QUINTET_CHECK(key.size(2) > 0 && heads % key.size(2) == 0, "{} query heads over {} key heads", heads, key.size(2));
  require_if_present(document_starts, {batch, query.size(1)}, "document_starts");
  return {.batch = batch,
          .heads = heads,
          .key_heads = key.size(2),
          .query_rows = query.size(1),
          .key_rows = key.size(1),
          .head_dim = head_dim,
          .first_query = first_query,
          .first_key = first_key,
          .document_starts = document_starts.as<int32_t>()};
}

// A contiguous [B, S, N, D].
template <typename T>
kernels::HeadTensor<T> head_tensor(const Tensor& tensor) {
  return kernels::HeadTensor<T>::contiguous(tensor.as<std::remove_const_t<T>>(), tensor.size(1), tensor.size(2),
                                            tensor.size(3));
}

inline kernels::RouterShape router_shape(const Tensor& probabilities, const Tensor& log_sum_exp, const RouterRows& rows,
                                         int threads) {
  require_rank(probabilities, 2, "probabilities");
  const int64_t count = probabilities.size(0), experts = probabilities.size(1);
  require(log_sum_exp, {count}, "log_sum_exp");
  require(rows.identities, {count}, "rows.identities");
  return {.rows = count,
          .experts = experts,
          .rows_of = {rows.identities.as<int64_t>(), rows.sequence_length, rows.first_ordinal},
          .threads = threads};
}

inline kernels::RouterShape router_shape(const Tensor& probabilities, const Tensor& chosen, const Tensor& weights,
                                         const Tensor& log_sum_exp, const RouterRows& rows, bool normalize,
                                         int threads) {
  kernels::RouterShape shape = router_shape(probabilities, log_sum_exp, rows, threads);
  require_rank(chosen, 2, "experts");
  require(chosen, {shape.rows, chosen.size(1)}, "experts");
  require(weights, chosen.shape(), "weights");
  shape.top_k = chosen.size(1);
  shape.normalize = normalize;
  QUINTET_CHECK(1 <= shape.top_k && shape.top_k <= shape.experts, "{} of {} experts", shape.top_k, shape.experts);
  return shape;
}

// `rows` is [T, H], what the picked rows of `input` [R, H] add up to.
inline kernels::CombineShape combine_shape(const Tensor& input, const Tensor& index, const Tensor& rows, int threads) {
  require_rank(input, 2, "input");
  require_rank(index, 2, "index");
  require(rows, {index.size(0), input.size(1)}, "output");
  return {.rows = index.size(0), .picks = index.size(1), .width = input.size(1), .threads = threads};
}

}  // namespace quintet::device
