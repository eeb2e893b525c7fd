#include "lib/model/head.h"

#include <algorithm>

namespace quintet::model {
namespace {

// Products are made of blocks of this many tokens, the last one shorter, and a chunk is a whole number of blocks: how
// many it has cannot change a bit.
constexpr int64_t kBlock = 512;

// f(first, rows)
template <typename Function>
void for_blocks(int64_t tokens, const Function& f) {
  for (int64_t first = 0; first < tokens; first += kBlock) f(first, std::min(kBlock, tokens - first));
}

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

template <typename Function>
void Head::for_chunks(Pass& pass, const Function& f) const {
  const int64_t columns = weight_->shape()[0], tokens = pass.tokens();
  const int64_t blocks = pass.logits_bytes / (kBlock * columns * size_of(pass.types.compute));
  const int64_t most = kBlock * std::max<int64_t>(1, blocks);
  for (Chunk chunk; chunk.first < tokens; chunk.first += most) {
    chunk.count = std::min(most, tokens - chunk.first);
    chunk.is_last = chunk.first + chunk.count == tokens;
    const device::ArenaScope scope(pass.logits);
    f(chunk, pass.logits.allocate(pass.types.compute, {chunk.count, columns}));
  }
}

void Head::project(Pass& pass, Tensor x, const Chunk& chunk, Tensor logits, const Softmax& softmax) const {
  const device::ArenaScope scope(pass.scratch);
  const VocabularyShard shard = shard_of(*weight_, pass.tensor.rank());
  const int64_t count = chunk.count;
  const Tensor chunk_x = x.rows(chunk.first, count);
  for_blocks(count, [&](int64_t first, int64_t rows) {
    pass.device.linear_forward(
        {.x = chunk_x.rows(first, rows), .weight = weight_->weight(), .output = logits.rows(first, rows)});
  });
  pass.observe("logits", logits);

  // Each rank's maximum, sum of exponentials and target logit [3, count] give those of the whole vocabulary.
  const Tensor shards = pass.temporary_statistics({pass.tensor.ranks(), 3, count});
  const Tensor own = shards.rows(pass.tensor.rank(), 1).reshaped({3 * count});
  pass.device.cross_entropy_statistics({.logits = logits,
                                        .targets = pass.batch.targets.rows(chunk.first, count),
                                        .vocabulary_start = shard.start,
                                        .valid = shard.valid,
                                        .maximum = own.rows(0, count),
                                        .sum_exp = own.rows(count, count),
                                        .target_logit = own.rows(2 * count, count)});
  comm::ProcessGroup& group = pass.tensor.group();
  group.all_gather(own, group.even_counts(shards.elements()), shards, "softmax statistics").wait();
  pass.device.cross_entropy_merge({.shards = shards,
                                   .maximum = softmax.maximum.rows(chunk.first, count),
                                   .sum_exp = softmax.sum_exp.rows(chunk.first, count),
                                   .target_logit = softmax.target_logit.rows(chunk.first, count)});
}

void Head::sum_losses(Pass& pass, const Softmax& softmax, HeadSaved& saved) const {
  saved.loss = {};
  if (pass.tensor.rank() != 0) return;
  pass.device.cross_entropy_sum({.targets = pass.batch.targets,
                                 .maximum = softmax.maximum,
                                 .sum_exp = softmax.sum_exp,
                                 .target_logit = softmax.target_logit},
                                saved.loss);
}

void Head::forward(Pass& pass, HeadSaved& saved) const {
  const device::ArenaScope scope(pass.scratch);
  const Shape tokens = {pass.tokens()};
  const Softmax softmax = {pass.temporary_statistics(tokens), pass.temporary_statistics(tokens),
                           pass.temporary_statistics(tokens)};
  before(pass, parallel::Use::forward);
  NormSaved norm;
  Stream stream{.residual = saved.input};
  const Tensor x = pass.tensor.gather(pass.scratch, norm_.forward(pass, stream, norm, pass.scratch), "head input");
  for_chunks(pass, [&](const Chunk& chunk, Tensor logits) { project(pass, x, chunk, logits, softmax); });
  after(pass, parallel::Use::forward);
  sum_losses(pass, softmax, saved);
}

void Head::forward_backward(Pass& pass, HeadSaved& saved, Tensor d_residual) const {
  const device::ArenaScope scope(pass.scratch);
  const VocabularyShard shard = shard_of(*weight_, pass.tensor.rank());
  const Shape tokens = {pass.tokens()};
  const Softmax softmax = {pass.temporary_statistics(tokens), pass.temporary_statistics(tokens),
                           pass.temporary_statistics(tokens)};
  before(pass, parallel::Use::backward);
  NormSaved norm;
  Stream stream{.residual = saved.input};
  const Tensor output = norm_.forward(pass, stream, norm, pass.scratch);
  const Tensor x = pass.tensor.gather(pass.scratch, output, "head input");
  const Tensor d_normed = pass.temporary(output.shape());
  const Tensor d_part = pass.tensor.part_of(pass.scratch, d_normed);
  comm::Handle reduced;
  for_chunks(pass, [&](const Chunk& chunk, Tensor logits) {
    project(pass, x, chunk, logits, softmax);
    pass.device.cross_entropy_gradient({.logits = logits,
                                        .targets = pass.batch.targets.rows(chunk.first, chunk.count),
                                        .vocabulary_start = shard.start,
                                        .valid = shard.valid,
                                        .maximum = softmax.maximum.rows(chunk.first, chunk.count),
                                        .sum_exp = softmax.sum_exp.rows(chunk.first, chunk.count),
                                        .scale = pass.loss_scale});
    for_blocks(chunk.count, [&](int64_t first, int64_t rows) {
      pass.device.linear_backward_input({.d_output = logits.rows(first, rows),
                                         .weight = weight_->weight(),
                                         .d_x = d_part.rows(chunk.first + first, rows)});
    });
    // The last chunk's products for the weight run while the parts of the gradient travel.
    if (chunk.is_last) reduced = pass.tensor.reduce(d_part, d_normed, "head input gradient");
    for_blocks(chunk.count, [&](int64_t first, int64_t rows) {
      pass.device.linear_backward_weight({.x = x.rows(chunk.first + first, rows),
                                          .d_output = logits.rows(first, rows),
                                          .weight_gradient = weight_->gradient()});
    });
  });
  reduced.wait();
  pass.device.fill(d_residual, 0);
  norm_.backward_input(pass, d_normed, d_residual, norm);
  norm_.backward_weight(pass, d_normed, norm);
  after(pass, parallel::Use::backward);
  sum_losses(pass, softmax, saved);
}

}  // namespace quintet::model
