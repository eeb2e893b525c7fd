#include "lib/model/feed_forward.h"

#include "lib/model/initialisation.h"

namespace quintet::model {
namespace {

device::Activation activation_of(const config::Model& config) {
  switch (config.activation) {
    case config::Activation::gelu: return device::Activation::gelu;
    case config::Activation::gelu_exact: return device::Activation::gelu_exact;
    case config::Activation::relu_squared: return device::Activation::relu_squared;
    case config::Activation::swiglu: return device::Activation::none;
  }
  QUINTET_CHECK(false, "unknown activation");
}

Tensor rows_of(Tensor tensor, int64_t first, int64_t count) { return tensor ? tensor.rows(first, count) : tensor; }

}  // namespace

FeedForward::FeedForward(parallel::ParameterStore& store, const std::string& name, const config::Model& config,
                         int64_t inner, parallel::Placement along_ep)
    : gated_(config.activation == config::Activation::swiglu), activation_(activation_of(config)) {
  const int64_t hidden = config.hidden_size;
  const LinearOptions columns = {
      .split = Split::column, .bias = config.bias, .init = matrix_init(config), .along_ep = along_ep};
  if (gated_) gate_ = Linear(store, name + ".gate", inner, hidden, columns);
  up_ = Linear(store, name + ".up", inner, hidden, columns);
  down_ = Linear(store, name + ".down", hidden, inner,
                 {.split = Split::row, .bias = config.bias, .init = residual_init(config), .along_ep = along_ep});
}

FeedForwardSaved FeedForwardSaved::rows(int64_t first, int64_t count) const {
  return {rows_of(gate, first, count), rows_of(up, first, count), rows_of(hidden, first, count)};
}

FeedForwardGradients FeedForwardGradients::rows(int64_t first, int64_t count) const {
  return {rows_of(gate, first, count), rows_of(up, first, count)};
}

FeedForwardSaved FeedForward::make_saved(Pass& pass, int64_t rows) const {
  const Shape shape = {rows, up_.outputs()};
  FeedForwardSaved saved;
  saved.up = pass.keep(shape);
  if (gated_) saved.gate = pass.keep(shape);
  if (!pass.is_selective()) saved.hidden = pass.keep(shape);
  return saved;
}

FeedForwardGradients FeedForward::make_gradients(Pass& pass, int64_t rows) const {
  const Shape shape = {rows, up_.outputs()};
  FeedForwardGradients gradients;
  gradients.up = pass.for_weights(shape);
  if (gated_) gradients.gate = pass.for_weights(shape);
  return gradients;
}

void FeedForward::expand(Pass& pass, Tensor x, FeedForwardSaved& saved) const {
  if (pass.is_selective()) saved.hidden = pass.temporary(saved.up.shape());
  if (gated_) {
    gate_.forward(pass, x, saved.gate);
    up_.forward(pass, x, saved.up);
    activate(pass, saved, saved.hidden);
  } else {
    up_.forward(pass, x, saved.hidden, activation_, saved.up);
  }
}

void FeedForward::contract(Pass& pass, Tensor output, const FeedForwardSaved& saved) const {
  down_.forward(pass, saved.hidden, output);
}

void FeedForward::activate(Pass& pass, const FeedForwardSaved& saved, Tensor hidden) const {
  if (gated_) {
    pass.device.swiglu_forward({.gate = saved.gate, .up = saved.up, .output = hidden});
  } else {
    pass.device.activation_forward({.activation = activation_, .pre_activation = saved.up, .output = hidden});
  }
}

void FeedForward::backward_input(Pass& pass, Tensor d_output, Tensor d_x, const FeedForwardSaved& saved,
                                 const FeedForwardGradients& gradients) const {
  if (gated_) {
    const device::ArenaScope scope(pass.scratch);
    const Tensor d_hidden = pass.temporary(saved.up.shape());
    down_.backward_input(pass, d_output, d_hidden);
    pass.device.swiglu_backward(
        {.gate = saved.gate, .up = saved.up, .d_output = d_hidden, .d_gate = gradients.gate, .d_up = gradients.up});
    gate_.backward_input(pass, gradients.gate, d_x);
  } else {
    down_.backward_input(pass, d_output, gradients.up, /*accumulate=*/false, activation_, saved.up);
  }
  up_.backward_input(pass, gradients.up, d_x, /*accumulate=*/gated_);
}

void FeedForward::backward_weight(Pass& pass, Tensor x, Tensor d_output, const FeedForwardSaved& saved,
                                  const FeedForwardGradients& gradients) const {
  const device::ArenaScope scope(pass.scratch);
  Tensor hidden = saved.hidden;
  if (pass.is_selective()) {
    hidden = pass.temporary(saved.up.shape());
    activate(pass, saved, hidden);
  }
  down_.backward_weight(pass, hidden, d_output);
  if (gated_) gate_.backward_weight(pass, x, gradients.gate);
  up_.backward_weight(pass, x, gradients.up);
}

}  // namespace quintet::model
