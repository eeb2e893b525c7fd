#include "lib/model/block.h"

namespace quintet::model {
namespace {

// The gradient of a branch, given that of the stream it was added to: the same, but for dropout.
Tensor branch_gradient(Pass& pass, Tensor d_residual, const std::string& site) {
  if (!pass.drops()) return d_residual;
  const Tensor d_branch = pass.temporary(d_residual.shape());
  pass.device.add_dropout({}, d_residual, pass.dropout_at(site), d_branch);
  return d_branch;
}

}  // namespace

Block::Block(parallel::ParameterStore& store, int64_t layer, const config::Config& config, const RopeTable& rope)
    : name_(fmt::format("layers.{}", layer)),
      unit_(store.begin_unit(name_)),
      attention_norm_(store, name_ + ".attention_norm", config),
      attention_(store, name_ + ".attention", config.model, rope),
      mlp_norm_(store, name_ + ".mlp_norm", config) {
  if (is_moe_layer(config.model, layer)) {
    moe_.emplace(store, name_ + ".moe", layer, config);
  } else {
    mlp_.emplace(store, name_ + ".mlp", config.model, config.model.ffn_hidden_size);
  }
  store.end_unit();
}

void Block::balance(device::Device& device, std::span<const int64_t> loads) const {
  if (moe_) moe_->router().balance(device, loads);
}

void Block::add_counts(const BlockSaved& saved, RoutingTotals& totals) const {
  if (moe_) totals.add(saved.moe.router.counted);
}

void Block::forward(Pass& pass, Stream& stream, BlockSaved& saved) const {
  const Tensor attention_input = attention_norm_.forward(pass, stream, saved.attention_norm);
  attention_.forward(pass, attention_input, stream.branch, saved.attention);
  stream.has_branch = true;
  stream.dropout = pass.dropout_at(name_ + ".attention");

  const Tensor mlp_input = mlp_norm_.forward(pass, stream, saved.mlp_norm);
  if (moe_) {
    moe_->forward(pass, mlp_input, stream.branch, saved.moe);
  } else {
    mlp_->forward(pass, mlp_input, stream.branch, saved.mlp);
  }
  stream.has_branch = true;
  stream.dropout = pass.dropout_at(name_ + ".mlp");
}

void Block::backward(Pass& pass, Tensor d_residual, const BlockSaved& saved) const {
  const device::ArenaScope scope(pass.scratch);
  const Tensor d_normed = pass.temporary(d_residual.shape());

  const Tensor d_branch = branch_gradient(pass, d_residual, name_ + ".mlp");
  if (moe_) {
    moe_->backward(pass, d_branch, d_normed, saved.moe);
  } else {
    mlp_->backward(pass, d_branch, d_normed, saved.mlp);
  }
  mlp_norm_.backward(pass, d_normed, d_residual, saved.mlp_norm);
  attention_.backward(pass, branch_gradient(pass, d_residual, name_ + ".attention"), d_normed, saved.attention);
  attention_norm_.backward(pass, d_normed, d_residual, saved.attention_norm);
}

}  // namespace quintet::model
