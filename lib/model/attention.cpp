#include "lib/model/attention.h"

#include "lib/model/initialisation.h"

namespace quintet::model {

Attention::Attention(parallel::ParameterStore& store, std::string name, const config::Model& config,
                     const RopeTable& rope)
    : name_(std::move(name)), rope_(rope), head_dim_(config.head_dim), epsilon_(config.norm_epsilon) {
  const int64_t hidden = config.hidden_size;
  const int64_t query_size = config.heads * head_dim_;
  const int64_t key_size = config.kv_heads * head_dim_;
  const int64_t tensor_ranks = store.mesh().size(Axis::tp);
  const int64_t pieces = config.kv_heads < tensor_ranks ? config.kv_heads : 0;
  const parallel::Init init = matrix_init(config);
  const LinearOptions heads = {.split = Split::column, .bias = config.qkv_bias, .init = init};
  LinearOptions key_heads = heads;
  key_heads.pieces = pieces;
  query_ = Linear(store, name_ + ".query", query_size, hidden, heads);
  key_ = Linear(store, name_ + ".key", key_size, hidden, key_heads);
  value_ = Linear(store, name_ + ".value", key_size, hidden, key_heads);
  heads_ = query_.outputs() / head_dim_;
  key_heads_ = key_.outputs() / head_dim_;
  if (config.qk_norm) {
    const parallel::ParameterSpec scale{.name = {},
                                        .shape = {head_dim_},
                                        // One scale for the heads of all ranks.
                                        .along = parallel::placements(parallel::Placement::parts()),
                                        .init = parallel::Init::ones()};
    parallel::ParameterSpec query_scale = scale, key_scale = scale;
    query_scale.name = name_ + ".query_norm.weight";
    key_scale.name = name_ + ".key_norm.weight";
    query_norm_ = &store.add(std::move(query_scale));
    key_norm_ = &store.add(std::move(key_scale));
  }
  output_ = Linear(store, name_ + ".output", hidden, query_size,
                   {.split = Split::row, .bias = config.bias, .init = residual_init(config)});
}

parallel::ContextAttention Attention::core(Pass& pass) const {
  return {.device = pass.device,
          .scratch = pass.scratch,
          .region = pass.context,
          .name = name_,
          .sequences = pass.sequences(),
          .heads = heads_,
          .key_heads = key_heads_,
          .head_dim = head_dim_,
          .document_starts = pass.batch.document_starts,
          .all_document_starts = pass.batch.all_document_starts};
}

void Attention::project(Pass& pass, Tensor x, const Linear& linear, const parallel::Parameter* scale, int64_t heads,
                        HeadsSaved& saved) const {
  const Shape shape = {pass.tokens(), heads, head_dim_};
  saved.projected = pass.keep(shape);
  linear.forward(pass, x, saved.projected.reshaped({pass.tokens(), heads * head_dim_}));
  const bool rotates = static_cast<bool>(rope_.cosine());
  saved.ready = saved.projected;
  if (scale == nullptr && !rotates) return;
  if (scale != nullptr) {
    saved.ready = pass.keep(shape);  // the norm's backward needs its input
    saved.inverse_rms = pass.keep_statistics({pass.tokens(), heads});
  }
  pass.device.rope_norm_forward({.input = saved.projected,
                                 .scale = scale != nullptr ? scale->weight() : Tensor{},
                                 .epsilon = epsilon_,
                                 .cosine = rope_.cosine(),
                                 .sine = rope_.sine(),
                                 .positions = pass.batch.positions,
                                 .inverse_rms = saved.inverse_rms,
                                 .output = saved.ready});
}

Tensor Attention::turn_back(Pass& pass, const HeadsSaved& saved, const parallel::Parameter* scale, int64_t heads,
                            Tensor d_ready) const {
  if (scale == nullptr && !rope_.cosine()) return d_ready;
  const Shape shape = {pass.tokens(), heads, head_dim_};
  const Tensor d_projected = scale != nullptr ? pass.for_weights(d_ready.shape()) : d_ready;
  pass.device.rope_norm_backward_input({.input = saved.projected,
                                        .scale = scale != nullptr ? scale->weight() : Tensor{},
                                        .cosine = rope_.cosine(),
                                        .sine = rope_.sine(),
                                        .positions = pass.batch.positions,
                                        .inverse_rms = saved.inverse_rms,
                                        .d_output = d_ready.reshaped(shape),
                                        .d_input = d_projected.reshaped(shape)});
  return d_projected;
}

void Attention::scale_gradient(Pass& pass, const HeadsSaved& saved, const parallel::Parameter& scale, int64_t heads,
                               Tensor d_ready) const {
  pass.device.rope_norm_backward_weight({.input = saved.projected,
                                         .cosine = rope_.cosine(),
                                         .sine = rope_.sine(),
                                         .positions = pass.batch.positions,
                                         .inverse_rms = saved.inverse_rms,
                                         .d_output = d_ready.reshaped({pass.tokens(), heads, head_dim_}),
                                         .scale_gradient = scale.gradient()});
}

void Attention::core_forward(Pass& pass, const AttentionSaved& saved, Tensor context, Tensor log_sum_exp) const {
  core(pass).forward(saved.query.ready.reshaped({pass.tokens(), heads_ * head_dim_}),
                     saved.key.ready.reshaped({pass.tokens(), key_heads_ * head_dim_}), saved.value, context,
                     log_sum_exp);
}

void Attention::forward(Pass& pass, Tensor x, Tensor output, AttentionSaved& saved) const {
  const device::ArenaScope scope(pass.scratch);
  const int64_t tokens = pass.tokens();
  saved.input = x;
  const Tensor whole = pass.tensor.gather(pass.scratch, x, name_ + " input");
  project(pass, whole, query_, query_norm_, heads_, saved.query);
  project(pass, whole, key_, key_norm_, key_heads_, saved.key);
  saved.value = pass.keep({tokens, key_heads_ * head_dim_});
  value_.forward(pass, whole, saved.value);
  pass.observe(name_ + ".query", saved.query.ready);
  pass.observe(name_ + ".key", saved.key.ready);
  pass.observe(name_ + ".value", saved.value);

  saved.context = pass.keep_unless_selective({tokens, heads_ * head_dim_});
  saved.log_sum_exp =
      pass.is_selective() ? pass.temporary_statistics({tokens * heads_}) : pass.keep_statistics({tokens * heads_});
  core_forward(pass, saved, saved.context, saved.log_sum_exp);
  pass.observe(name_ + " context", saved.context);
  const Tensor part = pass.tensor.part_of(pass.scratch, output);
  output_.forward(pass, saved.context, part);
  pass.tensor.reduce(part, output, name_ + " output").wait();
  pass.observe(name_ + ".output", output);
}

AttentionGradients Attention::backward_input(Pass& pass, Tensor d_output, Tensor d_x,
                                             const AttentionSaved& saved) const {
  const int64_t tokens = pass.tokens();
  AttentionGradients gradients;
  gradients.d_output = {d_output, pass.tensor.start_gather(pass.scratch, d_output, name_ + " output gradient")};
  gradients.d_output.copied.done.wait();
  gradients.context = saved.context;
  Tensor log_sum_exp = saved.log_sum_exp;
  if (pass.is_selective()) {
    gradients.context = pass.for_weights({tokens, heads_ * head_dim_});
    log_sum_exp = pass.temporary_statistics({tokens * heads_});
    core_forward(pass, saved, gradients.context, log_sum_exp);
  }
  const Tensor d_context = pass.temporary({tokens, heads_ * head_dim_});
  output_.backward_input(pass, gradients.d_output.copied.whole, d_context);

  gradients.d_query_ready = pass.for_weights({tokens, heads_ * head_dim_});
  gradients.d_key_ready = pass.for_weights({tokens, key_heads_ * head_dim_});
  gradients.d_value = pass.for_weights({tokens, key_heads_ * head_dim_});
  core(pass).backward({.query = saved.query.ready.reshaped({tokens, heads_ * head_dim_}),
                       .key = saved.key.ready.reshaped({tokens, key_heads_ * head_dim_}),
                       .value = saved.value,
                       .output = gradients.context,
                       .log_sum_exp = log_sum_exp,
                       .d_output = d_context,
                       .d_query = gradients.d_query_ready,
                       .d_key = gradients.d_key_ready,
                       .d_value = gradients.d_value});
  gradients.d_query = turn_back(pass, saved.query, query_norm_, heads_, gradients.d_query_ready);
  gradients.d_key = turn_back(pass, saved.key, key_norm_, key_heads_, gradients.d_key_ready);

  gradients.input.local = saved.input;
  if (!pass.splits_backward)
    gradients.input.copied = pass.tensor.start_gather(pass.scratch, saved.input, name_ + " input again");
  const Tensor d_part = pass.tensor.part_of(pass.scratch, d_x);
  query_.backward_input(pass, gradients.d_query, d_part);
  key_.backward_input(pass, gradients.d_key, d_part, /*accumulate=*/true);
  value_.backward_input(pass, gradients.d_value, d_part, /*accumulate=*/true);
  gradients.reduced = pass.tensor.reduce(d_part, d_x, name_ + " input gradient");
  return gradients;
}

void Attention::backward_weight(Pass& pass, const AttentionSaved& saved, AttentionGradients& gradients) const {
  const device::ArenaScope scope(pass.scratch);
  output_.backward_weight(pass, gradients.context, gradients.d_output.whole(pass, name_ + " output gradient again"));
  if (query_norm_ != nullptr) {
    scale_gradient(pass, saved.query, *query_norm_, heads_, gradients.d_query_ready);
    scale_gradient(pass, saved.key, *key_norm_, key_heads_, gradients.d_key_ready);
  }
  const Tensor x = gradients.input.whole(pass, name_ + " input again");
  query_.backward_weight(pass, x, gradients.d_query);
  key_.backward_weight(pass, x, gradients.d_key);
  value_.backward_weight(pass, x, gradients.d_value);
}

}  // namespace quintet::model
