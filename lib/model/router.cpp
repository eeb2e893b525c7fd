#include "lib/model/router.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lib/model/initialisation.h"

namespace quintet::model {
namespace {

// The tensor in the type of statistics; a cast copy lies in scratch.
Tensor in_statistics(Pass& pass, Tensor tensor) {
  if (tensor.dtype() == pass.types.statistics) return tensor;
  const Tensor cast = pass.temporary_statistics(tensor.shape());
  pass.device.copy(tensor, cast);
  return cast;
}

device::RouterRows rows_of(const Pass& pass, int64_t sequence_length) {
  return {.identities = pass.tensor.local(pass.batch.rows),
          .sequence_length = sequence_length,
          .first_ordinal = pass.batch.first_ordinal};
}

}  // namespace

Router::Router(parallel::ParameterStore& store, std::string name, int64_t layer, const config::Config& config)
    : name_(std::move(name)),
      layer_(layer),
      ordinal_(moe_ordinal(config.model, layer)),
      config_(*config.model.moe),
      capacity_(0),
      sequence_length_(config.model.seq_length),
      balance_scale_(balance_scale(config)),
      z_scale_(z_scale(config)) {
  if (config_.capacity_factor) {
    const int64_t slots = sequence_length_ * config_.top_k;  // no expert gets more of a sequence
    const double share =
        std::ceil(*config_.capacity_factor * static_cast<double>(slots) / static_cast<double>(config_.experts));
    capacity_ = share < static_cast<double>(slots) ? static_cast<int64_t>(share) : slots;
  }
  weight_ = &store.add({.name = name_ + ".weight",
                        .shape = {config_.experts, config.model.hidden_size},
                        .along = parallel::placements(replicated_over_rows(config)),
                        .init = matrix_init(config.model)});
  if (config_.balance != config::MoeBalance::bias) return;
  balance_bias_ = &store.add(
      {.name = name_ + ".balance_bias", .shape = {config_.experts}, .init = parallel::Init::zeros(), .trained = false});
}

std::vector<int32_t> Router::forward(Pass& pass, Tensor x, RouterSaved& saved) const {
  const int64_t rows = x.size(0), experts = config_.experts, top_k = config_.top_k;
  saved.input = x;
  saved.probabilities = pass.keep_statistics({rows, experts});
  saved.log_sum_exp = pass.keep_statistics({rows});
  saved.weights = pass.keep_statistics({rows, top_k});
  saved.experts = pass.saved.allocate(DType::i32, {rows, top_k});
  const device::ArenaScope scope(pass.scratch);
  const Tensor logits = pass.temporary_statistics({rows, experts});
  pass.device.linear_forward(
      {.x = in_statistics(pass, x), .weight = in_statistics(pass, weight_->weight()), .output = logits});
  pass.observe(name_ + " logits", logits);
  pass.device.router_forward({.logits = logits,
                              .selection_bias = balance_bias_ != nullptr ? balance_bias_->weight() : Tensor{},
                              .round_robin = config_.routing == config::Routing::round_robin,
                              .normalize = config_.normalize_top_k,
                              .rows = rows_of(pass, sequence_length_),
                              .probabilities = saved.probabilities,
                              .experts = saved.experts,
                              .weights = saved.weights,
                              .log_sum_exp = saved.log_sum_exp});

  std::vector<int32_t> choices(static_cast<size_t>(rows * top_k));
  pass.device.copy(saved.experts, Tensor(choices.data(), DType::i32, saved.experts.shape()));
  const std::span<const int64_t> identities = pass.local_identities();
  if (pass.mode != Mode::evaluate) saved.loads = sequence_loads(pass, choices, identities);
  if (pass.mode != Mode::recompute) saved.counted = {};
  const bool counts = pass.mode == Mode::train && pass.dispatch->counts();
  if (counts) {
    saved.counted.ordinal = ordinal_;
    saved.counted.loads.assign(static_cast<size_t>(experts), 0);
    saved.counted.count(layer_, choices, identities);
    pass.device.router_losses({.probabilities = saved.probabilities,
                               .loads = saved.loads,
                               .log_sum_exp = saved.log_sum_exp,
                               .rows = rows_of(pass, sequence_length_)},
                              saved.counted.balance, saved.counted.z);
  }
  if (capacity_ > 0) drop_excess(pass, choices, identities);
  if (counts) saved.counted.dropped = std::count(choices.begin(), choices.end(), parallel::kDropped);
  return choices;
}

Tensor Router::sequence_loads(Pass& pass, std::span<const int32_t> choices, std::span<const int64_t> identities) const {
  const int64_t experts = config_.experts;
  std::vector<double> loads(static_cast<size_t>(pass.sequences() * experts), 0);
  const size_t top_k = choices.size() / identities.size();
  for (size_t i = 0; i < choices.size(); ++i) {
    const int64_t sequence = identities[i / top_k] / sequence_length_ - pass.batch.first_ordinal;
    loads[static_cast<size_t>(sequence * experts + choices[i])] += 1;
  }
  const Tensor counted(loads.data(), DType::fp64, {pass.sequences(), experts});
  pass.dispatch->sequence_group().all_reduce(counted, comm::Reduction::sum, name_ + " loads of sequences").wait();
  const Tensor kept = pass.keep_statistics(counted.shape());
  pass.device.copy(counted, kept);
  return kept;
}

void Router::drop_excess(Pass& pass, std::span<int32_t> choices, std::span<const int64_t> identities) const {
  comm::ProcessGroup& group = pass.dispatch->sequence_group();
  const auto gather = [&]<typename T>(std::span<const T> own, std::string_view what) {
    const auto count = static_cast<int64_t>(own.size());
    std::vector<T> mine(own.begin(), own.end()), all(own.size() * static_cast<size_t>(group.size()));
    const std::vector<int64_t> counts(static_cast<size_t>(group.size()), count);
    group
        .all_gather(Tensor(mine.data(), kDTypeOf<T>, {count}), counts,
                    Tensor(all.data(), kDTypeOf<T>, {count * group.size()}), what)
        .wait();
    return all;
  };
  const std::vector<int32_t> all_choices = gather(std::span<const int32_t>(choices), name_ + " choices");
  const std::vector<int64_t> all_identities = gather(identities, name_ + " rows");

  std::vector<size_t> order(all_identities.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return all_identities[a] < all_identities[b]; });
  const size_t top_k = choices.size() / identities.size();
  const size_t first_own = static_cast<size_t>(group.rank()) * identities.size();
  std::vector<int64_t> claimed(static_cast<size_t>(config_.experts));
  int64_t sequence = -1;
  for (const size_t row : order) {
    if (all_identities[row] / sequence_length_ != sequence) std::fill(claimed.begin(), claimed.end(), 0);
    sequence = all_identities[row] / sequence_length_;
    for (size_t j = 0; j < top_k; ++j) {
      const bool fits = ++claimed[static_cast<size_t>(all_choices[row * top_k + j])] <= capacity_;
      const bool is_own = row >= first_own && row < first_own + identities.size();
      if (is_own && !fits) choices[(row - first_own) * top_k + j] = parallel::kDropped;
    }
  }
}

Tensor Router::backward_input(Pass& pass, Tensor d_weights, Tensor d_x, const RouterSaved& saved) const {
  const Shape shape = saved.probabilities.shape();
  const Tensor d_logits = pass.splits_backward ? pass.keep_statistics(shape) : pass.temporary_statistics(shape);
  pass.device.router_backward({.losses = {.probabilities = saved.probabilities,
                                          .loads = saved.loads,
                                          .log_sum_exp = saved.log_sum_exp,
                                          .rows = rows_of(pass, sequence_length_)},
                               .balance_scale = balance_scale_,
                               .z_scale = z_scale_,
                               .normalize = config_.normalize_top_k,
                               .experts = saved.experts,
                               .weights = saved.weights,
                               .d_weights = d_weights,
                               .d_logits = d_logits});
  pass.observe(name_ + " logits gradient", d_logits);
  const device::ArenaScope scope(pass.scratch);
  pass.device.linear_backward_input(
      {.d_output = d_logits, .weight = in_statistics(pass, weight_->weight()), .d_x = d_x});
  return d_logits;
}

void Router::backward_weight(Pass& pass, Tensor d_logits, const RouterSaved& saved) const {
  const device::ArenaScope scope(pass.scratch);
  pass.device.linear_backward_weight(
      {.x = in_statistics(pass, saved.input), .d_output = d_logits, .weight_gradient = weight_->gradient()});
}

void Router::balance(device::Device& device, std::span<const int64_t> loads) const {
  if (balance_bias_ == nullptr) return;
  const int64_t experts = config_.experts;
  const auto own = loads.subspan(static_cast<size_t>(ordinal_ * experts), static_cast<size_t>(experts));
  const int64_t slots = std::accumulate(own.begin(), own.end(), int64_t{0});
  std::vector<double> biases(own.size());
  const Tensor host(biases.data(), DType::fp64, {experts});
  device.copy(balance_bias_->weight(), host);
  for (size_t e = 0; e < own.size(); ++e) {
    const int64_t above_mean = own[e] * experts - slots;  // times the number of experts
    if (above_mean != 0) biases[e] += above_mean < 0 ? config_.bias_update_rate : -config_.bias_update_rate;
  }
  device.copy(host, balance_bias_->weight());
}

}  // namespace quintet::model
