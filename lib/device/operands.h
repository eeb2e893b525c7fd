// Checks of the shapes that operations are called with, and what both devices make of operands in the same way: the
// arguments of kernels/cpu and kernels/cuda have the same names, their types are the templates' parameters.
#pragma once

#include <type_traits>

#include "lib/device/device.h"

namespace quintet::device {

inline void require(const Tensor& tensor, const Shape& shape, const char* name) {
  QUINTET_CHECK(tensor && tensor.shape() == shape, "{} is {}{}, expected {}", name, tensor ? "" : "absent ",
                to_string(tensor.shape()), to_string(shape));
}
inline void require_if_present(const Tensor& tensor, const Shape& shape, const char* name) {
  if (tensor) require(tensor, shape, name);
}
inline void require_rank(const Tensor& tensor, int rank, const char* name) {
  QUINTET_CHECK(tensor && tensor.shape().rank() == rank, "{} is {}{}, expected {} dimensions", name,
                tensor ? "" : "absent ", to_string(tensor.shape()), rank);
}

template <typename Kind>
Kind activation_kind(Activation activation) {
  switch (activation) {
    case Activation::gelu: return Kind::gelu;
    case Activation::gelu_exact: return Kind::gelu_exact;
    case Activation::relu_squared: return Kind::relu_squared;
    case Activation::none: break;
  }
  QUINTET_CHECK(false, "no kernel for activation {}", static_cast<int>(activation));
}

template <typename Norm>
Norm norm_kind(NormKind kind) {
  return kind == NormKind::layernorm ? Norm::layer : Norm::root_mean_square;
}

template <typename Mask>
Mask dropout_mask(const Dropout& dropout, int64_t rows) {
  QUINTET_CHECK(dropout.probability >= 0 && dropout.probability < 1, "dropout {}", dropout.probability);
  if (dropout.probability == 0) return {};
  require(dropout.rows, {rows}, "dropout.rows");
  return {dropout.probability, dropout.seed, dropout.stream, dropout.rows.as<int64_t>()};
}

// `rows` is [T, H]; the tables are values or their gradients.
template <typename Args>
Args embedding_operands(const Tensor& tokens, int64_t vocabulary_start, const Tensor& positions, const Tensor& rows,
                        const Tensor& table, const Tensor& position_table) {
  const int64_t count = rows.size(0), width = rows.size(1);
  require(tokens, {count}, "tokens");
  require_rank(table, 2, "table");
  require(table, {table.size(0), width}, "table");
  if (position_table) {
    require_rank(position_table, 2, "position_table");
    require(position_table, {position_table.size(0), width}, "position_table");
    require(positions, {count}, "positions");
  }
  Args args;
  args.tokens_count = count;
  args.width = width;
  args.tokens = tokens.as<int32_t>();
  args.vocabulary_start = vocabulary_start;
  args.table_rows = table.size(0);
  args.positions = positions.as<int32_t>();
  args.position_rows = position_table ? position_table.size(0) : 0;
  return args;
}

// [T, H], of either part of a norm's backward.
template <typename Backward>
Shape norm_backward_shape(const Backward& op) {
  require_rank(op.input, 2, "input");
  const Shape shape = op.input.shape(), rows = {shape[0]};
  require(op.inverse_deviation, rows, "inverse_deviation");
  if (op.kind == NormKind::layernorm) require(op.mean, rows, "mean");
  require(op.d_output, shape, "d_output");
  return shape;
}

// What both parts read. A: the type of arithmetic.
template <typename Args, typename T, typename A, typename Backward>
Args norm_backward_operands(const Backward& op) {
  Args args;
  args.norm = norm_kind<decltype(args.norm)>(op.kind);
  args.rows = op.input.size(0);
  args.width = op.input.size(1);
  args.input = op.input.template as<T>();
  args.mean = op.mean.template as<A>();
  args.inverse_deviation = op.inverse_deviation.template as<A>();
  args.d_output = op.d_output.template as<T>();
  return args;
}

// T: of heads and scale; A: of the tables of angles.
template <typename Args, typename T, typename A>
Args rope_norm_operands(const Tensor& heads, const Tensor& scale, double epsilon, const Tensor& cosine,
                        const Tensor& sine, const Tensor& positions, const Tensor& inverse_rms) {
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
  Args args;
  args.tokens = tokens;
  args.heads = count;
  args.width = width;
  args.scale = scale.as<T>();
  args.epsilon = epsilon;
  args.cosine = cosine.as<A>();
  args.sine = sine.as<A>();
  args.table_rows = cosine ? cosine.size(0) : 0;
  args.positions = positions.as<int32_t>();
  return args;
}

inline void require_statistics(const CrossEntropyStatistics& op) {
  require_rank(op.logits, 2, "logits");
  const Shape rows = {op.logits.size(0)};
  require(op.targets, rows, "targets");
  require(op.maximum, rows, "maximum");
  require(op.sum_exp, rows, "sum_exp");
  require(op.target_logit, rows, "target_logit");
}

// T.
inline int64_t require_losses(const CrossEntropySum& op) {
  require_rank(op.targets, 1, "targets");
  const Shape rows = op.targets.shape();
  require(op.maximum, rows, "maximum");
  require(op.sum_exp, rows, "sum_exp");
  require(op.target_logit, rows, "target_logit");
  return rows[0];
}

template <typename Args, typename T>
Args cross_entropy_operands(const Tensor& logits, const Tensor& targets, int64_t vocabulary_start, int64_t valid) {
  require_rank(logits, 2, "logits");
  require(targets, {logits.size(0)}, "targets");
  QUINTET_CHECK(valid >= 0 && valid <= logits.size(1), "{} valid columns of {}", valid, logits.size(1));
  Args args;
  args.rows = logits.size(0);
  args.columns = logits.size(1);
  args.valid = valid;
  args.vocabulary_start = vocabulary_start;
  args.targets = targets.as<int32_t>();
  args.logits = logits.as<T>();
  return args;
}

// query: [B, S_q, N, D]; key: [B, S_k, N_kv, D].
template <typename AttentionShape>
AttentionShape attention_operands(const Tensor& query, const Tensor& key, int64_t first_query, int64_t first_key,
                                  const Tensor& document_starts) {
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
template <template <typename> typename HeadTensor, typename T>
HeadTensor<T> heads_of(const Tensor& tensor) {
  return HeadTensor<T>::contiguous(tensor.as<std::remove_const_t<T>>(), tensor.size(1), tensor.size(2), tensor.size(3));
}

// T of the rows, E of the experts.
template <typename RouterShape>
RouterShape router_operands(const Tensor& probabilities, const Tensor& log_sum_exp, const RouterRows& rows) {
  require_rank(probabilities, 2, "probabilities");
  const int64_t count = probabilities.size(0);
  require(log_sum_exp, {count}, "log_sum_exp");
  require(rows.identities, {count}, "rows.identities");
  RouterShape shape;
  shape.rows = count;
  shape.experts = probabilities.size(1);
  shape.rows_of = {rows.identities.as<int64_t>(), rows.sequence_length, rows.first_ordinal};
  return shape;
}
template <typename RouterShape>
RouterShape router_operands(const Tensor& probabilities, const Tensor& chosen, const Tensor& weights,
                            const Tensor& log_sum_exp, const RouterRows& rows, bool normalize) {
  auto shape = router_operands<RouterShape>(probabilities, log_sum_exp, rows);
  require_rank(chosen, 2, "experts");
  require(chosen, {shape.rows, chosen.size(1)}, "experts");
  require(weights, chosen.shape(), "weights");
  shape.top_k = chosen.size(1);
  shape.normalize = normalize;
  QUINTET_CHECK(1 <= shape.top_k && shape.top_k <= shape.experts, "{} of {} experts", shape.top_k, shape.experts);
  return shape;
}

// `rows` is [T, H], what the picked rows of `input` [R, H] add up to.
template <typename CombineShape>
CombineShape combine_operands(const Tensor& input, const Tensor& index, const Tensor& rows) {
  require_rank(input, 2, "input");
  require_rank(index, 2, "index");
  require(rows, {index.size(0), input.size(1)}, "output");
  CombineShape shape;
  shape.rows = index.size(0);
  shape.picks = index.size(1);
  shape.width = input.size(1);
  return shape;
}

}  // namespace quintet::device
