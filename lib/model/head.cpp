#include "lib/model/head.h"

#include "lib/model/initialisation.h"

namespace quintet::model {

Head::Head(parallel::ParameterStore& store, const config::Model& config, const parallel::Parameter* tied)
    : norm_(store, "final_norm", config), weight_(tied) {
  if (weight_ == nullptr)
    weight_ = &store.add({.name = "output.weight",
                          .shape = {config.vocab_size, config.hidden_size},
                          .shards = {{.axis = Axis::tp, .dimension = 0}},
                          .init = matrix_init(config)});
}

void Head::forward(Pass& pass, Stream& stream, HeadSaved& saved, ExactSum& loss) const {
  const int64_t vocabulary = weight_->shape()[0];
  saved.input = norm_.forward(pass, stream, saved.norm);
  saved.logits = pass.keep({pass.tokens(), vocabulary});
  pass.device.linear_forward({.x = saved.input, .weight = weight_->weight(), .output = saved.logits});
  pass.observe("logits", saved.logits);

  saved.maximum = pass.keep({pass.tokens()});
  saved.sum_exp = pass.keep({pass.tokens()});
  const device::ArenaScope scope(pass.scratch);
  const device::CrossEntropyStatistics statistics{.logits = saved.logits,
                                                  .targets = pass.batch.targets,
                                                  .valid = vocabulary,
                                                  .maximum = saved.maximum,
                                                  .sum_exp = saved.sum_exp,
                                                  .target_logit = pass.temporary({pass.tokens()})};
  pass.device.cross_entropy_statistics(statistics);
  pass.device.cross_entropy_sum(statistics, loss);
}

Tensor Head::backward(Pass& pass, const HeadSaved& saved) const {
  const Tensor d_residual = pass.temporary(saved.input.shape());
  const device::ArenaScope scope(pass.scratch);
  pass.device.cross_entropy_gradient({.logits = saved.logits,
                                      .targets = pass.batch.targets,
                                      .valid = weight_->shape()[0],
                                      .maximum = saved.maximum,
                                      .sum_exp = saved.sum_exp,
                                      .scale = pass.loss_scale});
  const Tensor d_normed = pass.temporary(saved.input.shape());
  pass.device.linear_backward_input({.d_output = saved.logits, .weight = weight_->weight(), .d_x = d_normed});
  pass.device.linear_backward_weight(
      {.x = saved.input, .d_output = saved.logits, .weight_gradient = weight_->gradient()});
  pass.device.fill(d_residual, 0);
  norm_.backward(pass, d_normed, d_residual, saved.norm);
  return d_residual;
}

}  // namespace quintet::model
