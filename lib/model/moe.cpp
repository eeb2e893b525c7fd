#include "lib/model/moe.h"

#include "lib/base/integers.h"

namespace quintet::model {
namespace {

// sum += other.
void add(Pass& pass, Tensor sum, Tensor other) { pass.device.add_dropout(sum, other, {}, sum); }

}  // namespace

Moe::Moe(parallel::ParameterStore& store, std::string name, int64_t layer, const config::Config& config)
    : name_(std::move(name)), router_(store, name_ + ".router", layer, config) {
  const config::Moe& moe = *config.model.moe;
  experts_unit_ = &store.begin_unit(name_ + ".experts");
  for (int64_t j = 0; j < moe.experts; ++j) {
    const parallel::Placement expert = parallel::Placement::one_holder(j, moe.experts);
    if (expert.holder(store.mesh().size(Axis::ep)) == store.coordinate()[Axis::ep])
      experts_.emplace_back(store, fmt::format("{}.experts.{}", name_, j), config.model, moe.ffn_hidden_size, expert);
  }
  store.end_unit();
  for (int64_t j = 0; j < moe.shared_experts; ++j)
    shared_.emplace_back(store, fmt::format("{}.shared.{}", name_, j), config.model, moe.ffn_hidden_size);
}

template <typename Function>
void Moe::for_experts(const parallel::ExpertDispatch::Plan& plan, const Function& f) const {
  int64_t first = 0;
  for (size_t e = 0; e < experts_.size(); ++e) {
    const int64_t rows = plan.expert_rows[e];
    if (rows > 0) f(e, first, rows);
    first += rows;
  }
}

void Moe::forward(Pass& pass, Tensor x, Tensor output, MoeSaved& saved) const {
  const parallel::ExpertDispatch& dispatch = *pass.dispatch;
  const int64_t hidden = x.size(1);
  const std::vector<int32_t> choices = router_.forward(pass, x, saved.router);
  const int64_t top_k = div_exact(static_cast<int64_t>(choices.size()), x.size(0));
  const parallel::ExpertDispatch::Plan& plan = saved.plan;
  {
    const device::ArenaScope scope(pass.scratch);
    const device::OwnerScope kept(pass.saved, device::Owner::expert_buffers),
        unkept(pass.scratch, device::Owner::expert_buffers);
    saved.plan = dispatch.plan(pass.saved, choices, top_k);
    saved.received = pass.keep({dispatch.received_rows(plan), hidden});
    saved.returned = pass.keep({plan.sent_rows(), hidden});
    // With one rank along ep nothing is sent: what would be is written where it would arrive, and where tensor ranks do
    // not split rows either, parts are made and summed where they are kept.
    const bool stays = dispatch.ranks() == 1;
    const bool in_place = stays && !pass.tensor.splits_rows();
    const Tensor sent = stays ? saved.received : pass.temporary(saved.returned.shape());
    pass.device.gather_rows({.input = x, .index = plan.row_of_slot, .output = sent});
    dispatch.send(plan, sent, saved.received, name_ + " rows");
    const Tensor rows = dispatch.gather(pass.scratch, plan, saved.received, name_ + " rows");
    const Tensor parts = in_place ? saved.returned : pass.temporary(rows.shape());
    const FeedForwardSaved inner = experts_.front().make_saved(pass, rows.size(0));
    saved.experts.resize(experts_.size());
    pass.units.before(*experts_unit_, parallel::Use::forward);
    for_experts(plan, [&](size_t e, int64_t first, int64_t count) {
      const device::ArenaScope one(pass.scratch);
      saved.experts[e] = inner.rows(first, count);
      experts_[e].expand(pass, rows.rows(first, count), saved.experts[e]);
      experts_[e].contract(pass, parts.rows(first, count), saved.experts[e]);
    });
    pass.units.after(*experts_unit_, parallel::Use::forward);
    pass.observe(name_ + " expert outputs", parts);
    parallel::ExpertDispatch::Sum sum = dispatch.start_sum(pass.scratch, plan, parts, name_ + " outputs");
    sum.done.wait();
    if (stays && !in_place) pass.device.copy(sum.total, saved.returned);
    if (!stays) dispatch.send_back(plan, sum.total, saved.returned, name_ + " outputs");
  }
  const bool has_output = pass.mode != Mode::recompute;  // which no gradient needs
  if (has_output)
    pass.device.combine_rows(
        {.input = saved.returned, .index = plan.slot_of_choice, .weights = saved.router.weights, .output = output});
  saved.shared.resize(shared_.size());
  for (size_t j = 0; j < shared_.size(); ++j) {
    const device::ArenaScope scope(pass.scratch);
    const Tensor addend = pass.temporary(output.shape());
    shared_[j].forward(pass, x, addend, saved.shared[j]);
    if (has_output) add(pass, output, addend);
  }
  if (has_output) pass.observe(name_ + " output", output);
}

MoeGradients Moe::backward(Pass& pass, Tensor d_output, Tensor d_x, const MoeSaved& saved) const {
  const device::ArenaScope scope(pass.scratch);
  MoeGradients gradients;
  routed_backward(pass, d_output, d_x, saved, gradients);
  for (size_t j = 0; j < shared_.size(); ++j) {
    const device::ArenaScope inner(pass.scratch);
    const Tensor addend = pass.temporary(d_x.shape());
    gradients.shared.push_back(backward_of(shared_[j], pass, d_output, addend, saved.shared[j]));
    add(pass, d_x, addend);
  }
  pass.observe(name_ + " input gradient", d_x);
  return gradients;
}

void Moe::routed_backward(Pass& pass, Tensor d_output, Tensor d_x, const MoeSaved& saved,
                          MoeGradients& gradients) const {
  const device::OwnerScope kept(pass.saved, device::Owner::expert_buffers),
      unkept(pass.scratch, device::Owner::expert_buffers);
  const parallel::ExpertDispatch& dispatch = *pass.dispatch;
  const parallel::ExpertDispatch::Plan& plan = saved.plan;
  const parallel::Use use = pass.splits_backward ? parallel::Use::backward_input : parallel::Use::backward;
  const bool stays = dispatch.ranks() == 1;
  gradients.d_received = pass.for_weights(saved.received.shape());
  const Tensor d_slots = stays ? gradients.d_received : pass.temporary(saved.returned.shape());
  const Tensor d_weights = pass.temporary_statistics(saved.router.weights.shape());
  pass.device.combine_rows_backward({.input = saved.returned,
                                     .index = plan.slot_of_choice,
                                     .weights = saved.router.weights,
                                     .d_output = d_output,
                                     .d_input = d_slots,
                                     .d_weights = d_weights});
  const Tensor d_router = pass.temporary_statistics(d_x.shape());
  gradients.d_logits = router_.backward_input(pass, d_weights, d_router, saved.router);

  dispatch.send(plan, d_slots, gradients.d_received, name_ + " output gradients");
  const Tensor d_rows = dispatch.gather(pass.scratch, plan, gradients.d_received, name_ + " output gradients");
  const Tensor rows =
      pass.splits_backward ? Tensor{} : dispatch.gather(pass.scratch, plan, saved.received, name_ + " rows again");
  const Tensor d_parts = pass.temporary(d_rows.shape());
  const FeedForwardGradients inner = experts_.front().make_gradients(pass, d_rows.size(0));
  gradients.experts.resize(experts_.size());
  pass.units.before(*experts_unit_, use);
  for_experts(plan, [&](size_t e, int64_t first, int64_t count) {
    gradients.experts[e] = inner.rows(first, count);
    experts_[e].backward_input(pass, d_rows.rows(first, count), d_parts.rows(first, count), saved.experts[e],
                               gradients.experts[e]);
  });
  parallel::ExpertDispatch::Sum sum = dispatch.start_sum(pass.scratch, plan, d_parts, name_ + " row gradients");
  if (!pass.splits_backward) experts_backward_weight(pass, rows, d_rows, saved, gradients);
  pass.units.after(*experts_unit_, use);
  if (!pass.splits_backward) router_.backward_weight(pass, gradients.d_logits, saved.router);
  sum.done.wait();
  Tensor d_sent = sum.total;
  if (!stays) {
    d_sent = d_slots;
    dispatch.send_back(plan, sum.total, d_sent, name_ + " row gradients");
  }
  pass.device.combine_rows({.input = d_sent, .index = plan.slot_of_choice, .addend = d_router, .output = d_x});
}

void Moe::backward_weight(Pass& pass, const MoeSaved& saved, MoeGradients& gradients) const {
  router_.backward_weight(pass, gradients.d_logits, saved.router);
  {
    const device::ArenaScope scope(pass.scratch);
    const device::OwnerScope unkept(pass.scratch, device::Owner::expert_buffers);
    const parallel::ExpertDispatch& dispatch = *pass.dispatch;
    const Tensor d_rows =
        dispatch.gather(pass.scratch, saved.plan, gradients.d_received, name_ + " output gradients again");
    const Tensor rows = dispatch.gather(pass.scratch, saved.plan, saved.received, name_ + " rows again");
    pass.units.before(*experts_unit_, parallel::Use::backward_weight);
    experts_backward_weight(pass, rows, d_rows, saved, gradients);
    pass.units.after(*experts_unit_, parallel::Use::backward_weight);
  }
  for (size_t j = 0; j < shared_.size(); ++j) shared_[j].backward_weight(pass, saved.shared[j], gradients.shared[j]);
}

void Moe::experts_backward_weight(Pass& pass, Tensor rows, Tensor d_rows, const MoeSaved& saved,
                                  const MoeGradients& gradients) const {
  for_experts(saved.plan, [&](size_t e, int64_t first, int64_t count) {
    experts_[e].backward_weight(pass, rows.rows(first, count), d_rows.rows(first, count), saved.experts[e],
                                gradients.experts[e]);
  });
}

}  // namespace quintet::model
