#include "lib/model/stage.h"

namespace quintet::model {
namespace {

// Moves the stream to `output`, what stands in its branch added.
void settle(Pass& pass, Stream& stream, Tensor output) {
  if (stream.has_branch) {
    pass.device.add_dropout(stream.residual, stream.branch, stream.dropout, output);
  } else {
    pass.device.copy(stream.residual, output);
  }
  stream.residual = output;
  stream.has_branch = false;
}

}  // namespace

Stage::Stage(parallel::ParameterStore& store, const config::Config& config, const RopeTable& rope,
             const StagePart& part, const Embedding* earlier)
    : part_(part) {
  if (part.is_first) embedding_.emplace(store, config);
  for (int64_t layer = part.first_layer; layer < part.first_layer + part.layers; ++layer)
    blocks_.emplace_back(store, layer, config, rope);
  const Embedding* table = part.is_first ? embedding() : earlier;
  if (part.is_last) head_.emplace(store, config, config.model.tie_embeddings ? table : nullptr);
}

void Stage::balance(device::Device& device, std::span<const int64_t> loads) const {
  for (const Block& block : blocks_) block.balance(device, loads);
}

void Stage::forward(Pass& pass, Tensor input, Tensor output, StageSaved& saved) const {
  const device::ArenaScope scope(pass.scratch);
  saved.blocks.resize(blocks_.size());
  Stream stream;
  stream.residual = embedding_ ? embedding_->forward(pass) : input;
  const Shape shape = stream.residual.shape();
  stream.branch = pass.temporary(shape);
  const bool forgets = pass.recompute == config::Recompute::full;
  saved.inputs.resize(forgets ? blocks_.size() : 0);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    pass.units.before(blocks_[i].unit(), parallel::Use::forward);
    if (forgets) {
      saved.inputs[i] = stream.residual;
      const Tensor next = i + 1 < blocks_.size() || head_ ? pass.keep(shape) : output;
      const device::ArenaScope forgotten(pass.saved);
      blocks_[i].forward(pass, stream, saved.blocks[i]);
      settle(pass, stream, next);
    } else {
      blocks_[i].forward(pass, stream, saved.blocks[i]);
    }
    pass.units.after(blocks_[i].unit(), parallel::Use::forward);
  }
  if (!head_) {
    if (stream.residual.data() != output.data()) settle(pass, stream, output);  // full recompute's blocks settle it
    return;
  }
  if (stream.has_branch) settle(pass, stream, pass.keep(shape));
  saved.head.input = stream.residual;
  if (pass.mode == Mode::evaluate) head_->forward(pass, saved.head);
}

void Stage::recompute(Pass& pass, size_t block, StageSaved& saved) const {
  const device::ArenaScope scope(pass.scratch);
  Stream stream{.residual = saved.inputs[block]};
  stream.branch = pass.temporary(stream.residual.shape());
  pass.mode = Mode::recompute;
  blocks_[block].forward(pass, stream, saved.blocks[block]);
  pass.mode = Mode::train;
}

void Stage::add_counts(const StageSaved& saved, Counts& counts) const {
  for (size_t i = 0; i < blocks_.size(); ++i) blocks_[i].add_counts(saved.blocks[i], counts.routing);
  if (head_) counts.loss.add(saved.head.loss);
}

void Stage::run_backward(Pass& pass, StageSaved& saved, Tensor d_stream) const {
  const device::ArenaScope scope(pass.scratch);
  const parallel::Use use = pass.splits_backward ? parallel::Use::backward_input : parallel::Use::backward;
  saved.gradients.resize(blocks_.size());
  if (head_) head_->forward_backward(pass, saved.head, d_stream);
  for (size_t i = blocks_.size(); i-- > 0;) {
    pass.units.before(blocks_[i].unit(), use);
    if (pass.recompute == config::Recompute::full) {
      // What is computed again lives until the weight part. Experts' weights serve it and the backward.
      const parallel::Unit* experts = blocks_[i].experts_unit();
      if (experts != nullptr) pass.units.before(*experts, parallel::Use::backward_input);
      std::optional<device::ArenaScope> recomputed;
      if (!pass.splits_backward) recomputed.emplace(pass.saved);
      recompute(pass, i, saved);
      blocks_[i].backward(pass, d_stream, saved.blocks[i], saved.gradients[i]);
      if (experts != nullptr) pass.units.after(*experts, parallel::Use::backward_input);
    } else {
      blocks_[i].backward(pass, d_stream, saved.blocks[i], saved.gradients[i]);
    }
    pass.units.after(blocks_[i].unit(), use);
  }
  if (embedding_) saved.d_embedding = embedding_->backward_input(pass, d_stream);
}

void Stage::backward(Pass& pass, StageSaved& saved, Tensor d_stream) const {
  pass.splits_backward = false;
  run_backward(pass, saved, d_stream);
  if (embedding_) embedding_->backward_weight(pass, saved.d_embedding);
}

void Stage::backward_input(Pass& pass, StageSaved& saved, Tensor d_stream) const {
  pass.splits_backward = true;
  run_backward(pass, saved, d_stream);
}

void Stage::backward_weight(Pass& pass, StageSaved& saved) const {
  pass.splits_backward = true;
  for (size_t i = blocks_.size(); i-- > 0;) {
    pass.units.before(blocks_[i].unit(), parallel::Use::backward_weight);
    blocks_[i].backward_weight(pass, saved.blocks[i], saved.gradients[i]);
    pass.units.after(blocks_[i].unit(), parallel::Use::backward_weight);
  }
  if (embedding_) embedding_->backward_weight(pass, saved.d_embedding);
}

}  // namespace quintet::model
