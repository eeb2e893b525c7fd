#include "lib/model/mlp.h"

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
}  // namespace

Mlp::Mlp(parallel::ParameterStore& store, std::string name, const config::Model& config)
    : name_(std::move(name)),
      ffn_(config.ffn_hidden_size),
      gated_(config.activation == config::Activation::swiglu),
      activation_(activation_of(config)) {
  const int64_t hidden = config.hidden_size;
  if (gated_) gate_ = Linear(store, name_ + ".gate", ffn_, hidden, Split::column, config.bias, matrix_init(config));
  up_ = Linear(store, name_ + ".up", ffn_, hidden, Split::column, config.bias, matrix_init(config));
  down_ = Linear(store, name_ + ".down", hidden, ffn_, Split::row, config.bias, residual_init(config));
}

void Mlp::forward(Pass& pass, Tensor x, Tensor output, MlpSaved& saved) const {
  const Shape shape = {pass.tokens(), ffn_};
  saved.input = x;
  saved.up = pass.keep(shape);
  saved.hidden = pass.keep(shape);
  if (gated_) {
    saved.gate = pass.keep(shape);
    gate_.forward(pass, x, saved.gate);
    up_.forward(pass, x, saved.up);
    pass.device.swiglu_forward({.gate = saved.gate, .up = saved.up, .output = saved.hidden});
  } else {
    up_.forward(pass, x, saved.hidden, activation_, saved.up);
  }
  pass.observe(name_ + " hidden", saved.hidden);
  down_.forward(pass, saved.hidden, output);
  pass.observe(name_ + ".down", output);
}

void Mlp::backward(Pass& pass, Tensor d_output, Tensor d_x, const MlpSaved& saved) const {
  const device::ArenaScope scope(pass.scratch);
  const Shape shape = {pass.tokens(), ffn_};
  const Tensor d_up = pass.temporary(shape);
  if (gated_) {
    const Tensor d_gate = pass.temporary(shape);
    const Tensor d_hidden = pass.temporary(shape);
    down_.backward_input(pass, d_output, d_hidden);
    pass.device.swiglu_backward(
        {.gate = saved.gate, .up = saved.up, .d_output = d_hidden, .d_gate = d_gate, .d_up = d_up});
    gate_.backward_input(pass, d_gate, d_x);
    gate_.backward_weight(pass, saved.input, d_gate);
  } else {
    down_.backward_input(pass, d_output, d_up, /*accumulate=*/false, activation_, saved.up);
  }
  down_.backward_weight(pass, saved.hidden, d_output);
  up_.backward_input(pass, d_up, d_x, /*accumulate=*/gated_);
  up_.backward_weight(pass, saved.input, d_up);
  pass.observe(name_ + " input gradient", d_x);
}

}  // namespace quintet::model
