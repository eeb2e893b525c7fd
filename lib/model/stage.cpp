#include "lib/model/stage.h"

namespace quintet::model {

Stage::Stage(parallel::ParameterStore& store, const config::Model& config, const RopeTable& rope) {
  const auto mark = [&] { first_parameter_.push_back(store.parameters().size()); };
  mark();
  embedding_.emplace(store, config);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    mark();
    blocks_.emplace_back(store, layer, config, rope);
  }
  mark();
  head_.emplace(store, config, config.tie_embeddings ? &embedding_->table() : nullptr);
  mark();
}

void Stage::forward(Pass& pass, StageSaved& saved, ExactSum& loss) const {
  const device::ArenaScope scope(pass.scratch);
  saved.blocks.resize(blocks_.size());
  Stream stream;
  stream.residual = embedding_->forward(pass);
  stream.branch = pass.temporary(stream.residual.shape());
  for (size_t i = 0; i < blocks_.size(); ++i) blocks_[i].forward(pass, stream, saved.blocks[i]);
  head_->forward(pass, stream, saved.head, loss);
}

void Stage::backward(Pass& pass, const StageSaved& saved, const GradientsDone& done) const {
  const device::ArenaScope scope(pass.scratch);
  const auto finished = [&](size_t part) {
    if (done) done(first_parameter_[part], first_parameter_[part + 1]);
  };
  const Tensor d_residual = head_->backward(pass, saved.head);
  finished(blocks_.size() + 1);
  for (size_t i = blocks_.size(); i-- > 0;) {
    blocks_[i].backward(pass, d_residual, saved.blocks[i]);
    finished(i + 1);
  }
  embedding_->backward(pass, d_residual);
  finished(0);
}

}  // namespace quintet::model
