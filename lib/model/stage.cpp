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
  stream.branch = pass.temporary(stream.residual.shape());
  for (size_t i = 0; i < blocks_.size(); ++i) {
    pass.units.before(blocks_[i].unit(), parallel::Use::forward);
    blocks_[i].forward(pass, stream, saved.blocks[i]);
    pass.units.after(blocks_[i].unit(), parallel::Use::forward);
  }
  if (head_) {
    head_->forward(pass, stream, saved.head);
  } else {
    settle(pass, stream, output);
  }
}

void Stage::add_counts(const StageSaved& saved, Counts& counts) const {
  for (size_t i = 0; i < blocks_.size(); ++i) blocks_[i].add_counts(saved.blocks[i], counts.routing);
  if (head_) counts.loss.add(saved.head.loss);
}

void Stage::run_backward(Pass& pass, StageSaved& saved, Tensor d_stream) const {
  const device::ArenaScope scope(pass.scratch);
  const parallel::Use use = pass.splits_backward ? parallel::Use::backward_input : parallel::Use::backward;
  saved.gradients.resize(blocks_.size());
  if (head_) head_->backward(pass, saved.head, d_stream);
  for (size_t i = blocks_.size(); i-- > 0;) {
    pass.units.before(blocks_[i].unit(), use);
    blocks_[i].backward(pass, d_stream, saved.blocks[i], saved.gradients[i]);
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
