#include "lib/model/block.h"

namespace quintet::model {
namespace {

// The gradient of a branch, given that of the stream it was added to: the same, but for dropout. The stream's gradient
// goes on changing, so that a later weight part has a copy.
Tensor branch_gradient(Pass& pass, Tensor d_residual, const std::string& site) {
  if (!pass.drops() && !pass.splits_backward) return d_residual;
  const Tensor d_branch = pass.for_weights(d_residual.shape());
  if (pass.drops()) {
    pass.device.add_dropout({}, d_residual, pass.dropout_at(site), d_branch);
  } else {
    pass.device.copy(d_residual, d_branch);
  }
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
  const Tensor attention_input = attention_norm_.forward(pass, stream, saved.attention_norm, pass.saved);
  attention_.forward(pass, attention_input, stream.branch, saved.attention);
  stream.has_branch = true;
  stream.dropout = pass.dropout_at(name_ + ".attention");

  const Tensor mlp_input = mlp_norm_.forward(pass, stream, saved.mlp_norm, pass.saved);
  if (moe_) {
    moe_->forward(pass, mlp_input, stream.branch, saved.moe);
  } else {
    mlp_->forward(pass, mlp_input, stream.branch, saved.mlp);
  }
  stream.has_branch = true;
  stream.dropout = pass.dropout_at(name_ + ".mlp");
}

template <typename Backward>
Tensor Block::branch_backward(Pass& pass, Tensor d_residual, const std::string& site, const Norm& norm,
                              const NormSaved& saved, const Backward& backward) const {
  const device::ArenaScope scope(pass.scratch);
  const Tensor d_input = pass.for_weights(d_residual.shape());
  backward(branch_gradient(pass, d_residual, site), d_input);
  norm.backward_input(pass, d_input, d_residual, saved);
  if (!pass.splits_backward) norm.backward_weight(pass, d_input, saved);
  return d_input;
}

void Block::backward(Pass& pass, Tensor d_residual, const BlockSaved& saved, BlockGradients& gradients) const {
  gradients.d_mlp_input = branch_backward(pass, d_residual, name_ + ".mlp", mlp_norm_, saved.mlp_norm,
                                          [&](Tensor d_branch, Tensor d_input) {
                                            if (moe_) {
                                              gradients.moe = moe_->backward(pass, d_branch, d_input, saved.moe);
                                            } else {
                                              gradients.mlp = backward_of(*mlp_, pass, d_branch, d_input, saved.mlp);
                                            }
                                          });
  gradients.d_attention_input = branch_backward(pass, d_residual, name_ + ".attention", attention_norm_,
                                                saved.attention_norm, [&](Tensor d_branch, Tensor d_input) {
                                                  gradients.attention =
                                                      backward_of(attention_, pass, d_branch, d_input, saved.attention);
                                                });
}

void Block::backward_weight(Pass& pass, const BlockSaved& saved, BlockGradients& gradients) const {
  if (moe_) {
    moe_->backward_weight(pass, saved.moe, gradients.moe);
  } else {
    mlp_->backward_weight(pass, saved.mlp, gradients.mlp);
  }
  mlp_norm_.backward_weight(pass, gradients.d_mlp_input, saved.mlp_norm);
  attention_.backward_weight(pass, saved.attention, gradients.attention);
  attention_norm_.backward_weight(pass, gradients.d_attention_input, saved.attention_norm);
}

}  // namespace quintet::model
