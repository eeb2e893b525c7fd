#include "lib/model/linear.h"

namespace quintet::model {

Linear::Linear(parallel::ParameterStore& store, const std::string& name, int64_t out, int64_t in,
               const LinearOptions& options)
    : split_(options.split) {
  const bool column = split_ == Split::column;
  PerAxis<parallel::Placement> along =
      parallel::placements(parallel::Placement::split(column ? 0 : 1, /*padded=*/0, options.pieces));
  along[Axis::ep] = options.along_ep;
  weight_ = &store.add({.name = name + ".weight", .shape = {out, in}, .along = along, .init = options.init});
  if (!options.bias) return;
  if (!column) along[Axis::tp] = parallel::Placement::same();
  bias_ = &store.add({.name = name + ".bias", .shape = {out}, .along = along, .init = parallel::Init::zeros()});
}

void Linear::forward(Pass& pass, Tensor x, Tensor output, device::Activation activation, Tensor pre_activation) const {
  const bool adds_bias = bias_ != nullptr && (split_ == Split::column || pass.tensor.rank() == 0);
  pass.device.linear_forward({.x = x,
                              .weight = weight_->weight(),
                              .bias = adds_bias ? bias_->weight() : Tensor{},
                              .activation = activation,
                              .pre_activation = pre_activation,
                              .output = output});
}

void Linear::backward_input(Pass& pass, Tensor d_output, Tensor d_x, bool accumulate, device::Activation activation,
                            Tensor pre_activation) const {
  pass.device.linear_backward_input({.d_output = d_output,
                                     .weight = weight_->weight(),
                                     .d_x = d_x,
                                     .accumulate = accumulate,
                                     .activation = activation,
                                     .pre_activation = pre_activation});
}

void Linear::backward_weight(Pass& pass, Tensor x, Tensor d_output) const {
  pass.device.linear_backward_weight({.x = x,
                                      .d_output = d_output,
                                      .weight_gradient = weight_->gradient(),
                                      .bias_gradient = bias_ != nullptr ? bias_->gradient() : Tensor{}});
}

}  // namespace quintet::model
