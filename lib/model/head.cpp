#include "lib/model/head.h"

namespace quintet::model {

namespace {
parallel::Use borrowed(parallel::Use use) {
  return use == parallel::Use::backward ? parallel::Use::backward_borrowed : use;
}
}  // namespace

Head::Head(parallel::ParameterStore& store, const config::Config& config, const Embedding* tied)
    : unit_(store.begin_unit("head")),
      lender_(tied != nullptr ? &tied->unit() : nullptr),
      norm_(store, "final_norm", config),
      weight_(tied != nullptr ? &tied->table() : nullptr) {
  if (weight_ == nullptr)
    weight_ = &store.add(config.model.tie_embeddings ? embedding_table(config, store.mesh())
                                                     : vocabulary_matrix("output.weight", config.model, store.mesh()));
  if (tied != nullptr) store.lend(tied->unit());
  store.end_unit();
}

void Head::before(Pass& pass, parallel::Use use) const {
  pass.units.before(unit_, use);
  if (lender_ != nullptr) pass.units.before(*lender_, borrowed(use));
}

void Head::after(Pass& pass, parallel::Use use) const {
  if (lender_ != nullptr) pass.units.after(*lender_, borrowed(use));
  pass.units.after(unit_, use);
}

void Head::forward(Pass& pass, Stream& stream, HeadSaved& saved) const {
  const VocabularyShard shard = shard_of(*weight_, pass.tensor.rank());
  const int64_t tokens = pass.tokens();
  before(pass, parallel::Use::forward);
  saved.input = norm_.forward(pass, stream, saved.norm);
  saved.logits = pass.keep({tokens, shard.rows});
  saved.maximum = pass.keep_statistics({tokens});
  saved.sum_exp = pass.keep_statistics({tokens});
  const device::ArenaScope scope(pass.scratch);
  const Tensor whole = pass.tensor.gather(pass.scratch, saved.input, "head input");
  pass.device.linear_forward({.x = whole, .weight = weight_->weight(), .output = saved.logits});
  after(pass, parallel::Use::forward);
  pass.observe("logits", saved.logits);

  // Each rank's maximum, sum of exponentials and target logit [3, T] give those of the whole vocabulary.
  const Tensor shards = pass.temporary_statistics({pass.tensor.ranks(), 3, tokens});
  const Tensor own = shards.rows(pass.tensor.rank(), 1).reshaped({3 * tokens});
  pass.device.cross_entropy_statistics({.logits = saved.logits,
                                        .targets = pass.batch.targets,
                                        .vocabulary_start = shard.start,
                                        .valid = shard.valid,
                                        .maximum = own.rows(0, tokens),
                                        .sum_exp = own.rows(tokens, tokens),
                                        .target_logit = own.rows(2 * tokens, tokens)});
  comm::ProcessGroup& group = pass.tensor.group();
  group.all_gather(own, group.even_counts(shards.elements()), shards, "softmax statistics").wait();
  const Tensor target_logit = pass.temporary_statistics({tokens});
  pass.device.cross_entropy_merge(
      {.shards = shards, .maximum = saved.maximum, .sum_exp = saved.sum_exp, .target_logit = target_logit});
  saved.loss = {};
  if (pass.tensor.rank() != 0) return;
  pass.device.cross_entropy_sum({.logits = saved.logits,
                                 .targets = pass.batch.targets,
                                 .vocabulary_start = shard.start,
                                 .valid = shard.valid,
                                 .maximum = saved.maximum,
                                 .sum_exp = saved.sum_exp,
                                 .target_logit = target_logit},
                                saved.loss);
}

void Head::backward(Pass& pass, const HeadSaved& saved, Tensor d_residual) const {
  const device::ArenaScope scope(pass.scratch);
  const VocabularyShard shard = shard_of(*weight_, pass.tensor.rank());
  before(pass, parallel::Use::backward);
  pass.device.cross_entropy_gradient({.logits = saved.logits,
                                      .targets = pass.batch.targets,
                                      .vocabulary_start = shard.start,
                                      .valid = shard.valid,
                                      .maximum = saved.maximum,
                                      .sum_exp = saved.sum_exp,
                                      .scale = pass.loss_scale});
  parallel::TensorRegion::Gathered x = pass.tensor.start_gather(pass.scratch, saved.input, "head input again");
  const Tensor d_normed = pass.temporary(saved.input.shape());
  const Tensor d_part = pass.tensor.part_of(pass.scratch, d_normed);
  pass.device.linear_backward_input({.d_output = saved.logits, .weight = weight_->weight(), .d_x = d_part});
  x.done.wait();
  comm::Handle reduced = pass.tensor.reduce(d_part, d_normed, "head input gradient");
  pass.device.linear_backward_weight({.x = x.whole, .d_output = saved.logits, .weight_gradient = weight_->gradient()});
  reduced.wait();
  pass.device.fill(d_residual, 0);
  norm_.backward_input(pass, d_normed, d_residual, saved.norm);
  norm_.backward_weight(pass, d_normed, saved.norm);
  after(pass, parallel::Use::backward);
}

}  // namespace quintet::model
