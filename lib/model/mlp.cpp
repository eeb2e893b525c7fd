#include "lib/model/mlp.h"

namespace quintet::model {

Mlp::Mlp(parallel::ParameterStore& store, std::string name, const config::Model& config, int64_t inner)
    : name_(std::move(name)), layers_(store, name_, config, inner) {}

void Mlp::forward(Pass& pass, Tensor x, Tensor output, MlpSaved& saved) const {
  const device::ArenaScope scope(pass.scratch);
  saved.input = x;
  const Tensor whole = pass.tensor.gather(pass.scratch, x, name_ + " input");
  const Tensor part = pass.tensor.part_of(pass.scratch, output);
  saved.inner = layers_.make_saved(pass, whole.size(0));
  layers_.expand(pass, whole, saved.inner);
  pass.observe(name_ + " hidden", saved.inner.hidden);
  if (pass.mode == Mode::recompute) return;  // no gradient needs the output
  layers_.contract(pass, part, saved.inner);
  pass.tensor.reduce(part, output, name_ + " output").wait();
  pass.observe(name_ + ".down", output);
}

MlpGradients Mlp::backward_input(Pass& pass, Tensor d_output, Tensor d_x, const MlpSaved& saved) const {
  MlpGradients gradients;
  gradients.d_output = {d_output, pass.tensor.start_gather(pass.scratch, d_output, name_ + " output gradient")};
  gradients.d_output.copied.done.wait();
  gradients.input.local = saved.input;
  if (!pass.splits_backward)
    gradients.input.copied = pass.tensor.start_gather(pass.scratch, saved.input, name_ + " input again");
  const Tensor d_part = pass.tensor.part_of(pass.scratch, d_x);
  gradients.inner = layers_.make_gradients(pass, d_part.size(0));
  layers_.backward_input(pass, gradients.d_output.copied.whole, d_part, saved.inner, gradients.inner);
  gradients.reduced = pass.tensor.reduce(d_part, d_x, name_ + " input gradient");
  return gradients;
}

void Mlp::backward_weight(Pass& pass, const MlpSaved& saved, MlpGradients& gradients) const {
  const device::ArenaScope scope(pass.scratch);
  const Tensor d_output = gradients.d_output.whole(pass, name_ + " output gradient again");
  const Tensor x = gradients.input.whole(pass, name_ + " input again");
  layers_.backward_weight(pass, x, d_output, saved.inner, gradients.inner);
}

}  // namespace quintet::model
