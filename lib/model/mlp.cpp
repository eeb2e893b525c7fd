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
      gated_(config.activation == config::Activation::swiglu),
      activation_(activation_of(config)) {
  const int64_t hidden = config.hidden_size, ffn = config.ffn_hidden_size;
  if (gated_) gate_ = Linear(store, name_ + ".gate", ffn, hidden, Split::column, config.bias, matrix_init(config));
  up_ = Linear(store, name_ + ".up", ffn, hidden, Split::column, config.bias, matrix_init(config));
  down_ = Linear(store, name_ + ".down", hidden, ffn, Split::row, config.bias, residual_init(config));
}

void Mlp::forward(Pass& pass, Tensor x, Tensor output, MlpSaved& saved) const {
  const device::ArenaScope scope(pass.scratch);
  const Shape shape = {pass.tokens(), up_.outputs()};
  saved.input = x;
  const Tensor whole = pass.tensor.gather(pass.scratch, x, name_ + " input");
  saved.up = pass.keep(shape);
  saved.hidden = pass.keep(shape);
  if (gated_) {
    saved.gate = pass.keep(shape);
    gate_.forward(pass, whole, saved.gate);
    up_.forward(pass, whole, saved.up);
    pass.device.swiglu_forward({.gate = saved.gate, .up = saved.up, .output = saved.hidden});
  } else {
    up_.forward(pass, whole, saved.hidden, activation_, saved.up);
  }
  pass.observe(name_ + " hidden", saved.hidden);
  const Tensor part = pass.tensor.part_of(pass.scratch, output);
  down_.forward(pass, saved.hidden, part);
  pass.tensor.reduce(part, output, name_ + " output").wait();
  pass.observe(name_ + ".down", output);
}

void Mlp::backward(Pass& pass, Tensor d_output, Tensor d_x, const MlpSaved& saved) const {
  const device::ArenaScope scope(pass.scratch);
  const Shape shape = {pass.tokens(), up_.outputs()};
  const Tensor d_whole = pass.tensor.gather(pass.scratch, d_output, name_ + " output gradient");
  parallel::TensorRegion::Gathered x = pass.tensor.start_gather(pass.scratch, saved.input, name_ + " input again");
  const Tensor d_part = pass.tensor.part_of(pass.scratch, d_x);
  const Tensor d_up = pass.temporary(shape);
  Tensor d_gate;
  if (gated_) {
    d_gate = pass.temporary(shape);
    const Tensor d_hidden = pass.temporary(shape);
    down_.backward_input(pass, d_whole, d_hidden);
    pass.device.swiglu_backward(
        {.gate = saved.gate, .up = saved.up, .d_output = d_hidden, .d_gate = d_gate, .d_up = d_up});
    gate_.backward_input(pass, d_gate, d_part);
  } else {
    down_.backward_input(pass, d_whole, d_up, /*accumulate=*/false, activation_, saved.up);
  }
  up_.backward_input(pass, d_up, d_part, /*accumulate=*/gated_);
  x.done.wait();
  // The weights' products run while the parts of d_x travel.
  comm::Handle reduced = pass.tensor.reduce(d_part, d_x, name_ + " input gradient");
  down_.backward_weight(pass, saved.hidden, d_whole);
  if (gated_) gate_.backward_weight(pass, x.whole, d_gate);
  up_.backward_weight(pass, x.whole, d_up);
  reduced.wait();
  pass.observe(name_ + " input gradient", d_x);
}

}  // namespace quintet::model
