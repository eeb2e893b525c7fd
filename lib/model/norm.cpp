#include "lib/model/norm.h"

#include "lib/model/initialisation.h"

namespace quintet::model {

Norm::Norm(parallel::ParameterStore& store, std::string name, const config::Config& config)
    : name_(std::move(name)),
      kind_(config.model.norm == config::Norm::layernorm ? device::NormKind::layernorm : device::NormKind::rmsnorm),
      epsilon_(config.model.norm_epsilon) {
  parallel::ParameterSpec spec{.name = name_ + ".weight",
                               .shape = {config.model.hidden_size},
                               .along = parallel::placements(replicated_over_rows(config)),
                               .init = parallel::Init::ones()};
  weight_ = &store.add(spec);
  if (!config.model.bias || kind_ != device::NormKind::layernorm) return;
  spec.name = name_ + ".bias";
  spec.init = parallel::Init::zeros();
  bias_ = &store.add(std::move(spec));
}

Tensor Norm::forward(Pass& pass, Stream& stream, NormSaved& saved, device::Arena& kept) const {
  const Shape shape = stream.residual.shape();
  const Shape rows = {shape[0]};
  saved.input = stream.has_branch ? kept.allocate(pass.types.compute, shape) : stream.residual;
  if (kind_ == device::NormKind::layernorm) saved.mean = kept.allocate(pass.types.statistics, rows);
  saved.inverse_deviation = kept.allocate(pass.types.statistics, rows);
  const Tensor output = kept.allocate(pass.types.compute, shape);
  pass.device.add_norm_forward({.kind = kind_,
                                .epsilon = epsilon_,
                                .residual = stream.residual,
                                .branch = stream.has_branch ? stream.branch : Tensor{},
                                .dropout = stream.dropout,
                                .residual_output = stream.has_branch ? saved.input : Tensor{},
                                .weight = weight_->weight(),
                                .bias = bias_ != nullptr ? bias_->weight() : Tensor{},
                                .output = output,
                                .mean = saved.mean,
                                .inverse_deviation = saved.inverse_deviation});
  stream.residual = saved.input;
  stream.has_branch = false;
  pass.observe(name_ + " output", output);
  return output;
}

void Norm::backward_input(Pass& pass, Tensor d_output, Tensor d_residual, const NormSaved& saved) const {
  pass.device.add_norm_backward_input({.kind = kind_,
                                       .input = saved.input,
                                       .weight = weight_->weight(),
                                       .mean = saved.mean,
                                       .inverse_deviation = saved.inverse_deviation,
                                       .d_output = d_output,
                                       .d_residual = d_residual});
  pass.observe(name_ + " input gradient", d_residual);
}

void Norm::backward_weight(Pass& pass, Tensor d_output, const NormSaved& saved) const {
  pass.device.add_norm_backward_weight({.kind = kind_,
                                        .input = saved.input,
                                        .mean = saved.mean,
                                        .inverse_deviation = saved.inverse_deviation,
                                        .d_output = d_output,
                                        .weight_gradient = weight_->gradient(),
                                        .bias_gradient = bias_ != nullptr ? bias_->gradient() : Tensor{}});
}

}  // namespace quintet::model
