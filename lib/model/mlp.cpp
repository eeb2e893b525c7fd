#include "lib/model/mlp.h"

namespace quintet::model {

Mlp::Mlp(parallel::ParameterStore& store, std::string name, const config::Model& config, int64_t inner)
    : name_(std::move(name)), layers_(store, name_, config, inner) {}

void Mlp::forward(Pass& pass, Tensor x, Tensor output, MlpSaved& saved) const {
  const device::ArenaScope scope(pass.scratch);
  saved.input = x;
  const Tensor whole = pass.tensor.gather(pass.scratch, x, name_ + " input");
  const Tensor part = pass.tensor.part_of(pass.scratch, output);
  layers_.forward(pass, whole, part, saved.inner);
  pass.observe(name_ + " hidden", saved.inner.hidden);
  pass.tensor.reduce(part, output, name_ + " output").wait();
  pass.observe(name_ + ".down", output);
}

void Mlp::backward(Pass& pass, Tensor d_output, Tensor d_x, const MlpSaved& saved) const {
  const device::ArenaScope scope(pass.scratch);
  const Tensor d_whole = pass.tensor.gather(pass.scratch, d_output, name_ + " output gradient");
  parallel::TensorRegion::Gathered x = pass.tensor.start_gather(pass.scratch, saved.input, name_ + " input again");
  const Tensor d_part = pass.tensor.part_of(pass.scratch, d_x);
  const FeedForwardGradients gradients = layers_.backward_input(pass, d_whole, d_part, saved.inner);
  x.done.wait();
  // The weights' products run while the parts of d_x travel.
  comm::Handle reduced = pass.tensor.reduce(d_part, d_x, name_ + " input gradient");
  layers_.backward_weight(pass, x.whole, d_whole, saved.inner, gradients);
  reduced.wait();
  pass.observe(name_ + " input gradient", d_x);
}

}  // namespace quintet::model
