#include "lib/pipeline/executor.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include <fmt/core.h>

#include "lib/pipeline/transfers.h"

namespace quintet::pipeline {
namespace {

using Kind = Action::Kind;

// Adds the seconds of its life.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() { seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double& seconds_;
  Clock::time_point start_ = Clock::now();
};

// "activations of microbatch 4": for reports.
std::string message_of(const Action& transfer) {
  const bool activation = transfer.kind == Kind::receive_activation || transfer.kind == Kind::send_activation;
  return fmt::format("{} of microbatch {}", activation ? "activations" : "gradients", transfer.microbatch);
}

// Memory for rows of experts, as a multiple of an even load. Routing decides anew in every microbatch how many rows
// come to a rank; one that has room for twice the even load does not ask for more in the middle of a run, unless
// training goes astray. Where experts have a capacity, no more can come than that.
double room_for_rows(const config::Config& config) {
  constexpr double kRoom = 2;
  const config::Moe& moe = *config.model.moe;
  if (!moe.capacity_factor) return kRoom;
  // A sequence's slots of an expert may all lie on one of the ranks along cp.
  const double slots = static_cast<double>(config.model.seq_length) * static_cast<double>(moe.top_k);
  const double capacity = std::ceil(*moe.capacity_factor * slots / static_cast<double>(moe.experts));
  return std::min(kRoom, capacity * static_cast<double>(moe.experts * config.mesh.cp) / slots);
}

}  // namespace

Executor::Executor(const config::Config& config, comm::Communicator& communicator, device::Device& device,
                   device::MemoryLedger& ledger, const StagePlacement& placement,
                   const std::deque<model::Stage>& stages, const device::ElementTypes& types,
                   const ArenaSizes& expected)
    : config_(config),
      communicator_(communicator),
      device_(device),
      ledger_(ledger),
      placement_(placement),
      stages_(stages),
      types_(types),
      pipeline_(communicator.group({Axis::pp}, Axis::pp)),
      tensor_(communicator, config.parallel.sequence_parallel),
      context_(communicator, config.parallel.context, config.model.seq_length),
      message_shape_(
          {tensor_.local_rows(config.train.micro_batch_size * context_.local_positions()), config.model.hidden_size}),
      expected_(expected),
      scratch_(device, ledger, device::Owner::workspace, expected.scratch),
      logits_(device, ledger, device::Owner::logits, expected.logits) {
  if (config.model.moe)
    dispatch_.emplace(communicator, device, tensor_, config.model.moe->experts, room_for_rows(config));
}

ArenaSizes Executor::arena_sizes() const {
  ArenaSizes sizes{.in_flight = {}, .scratch = scratch_.most_used(), .logits = logits_.most_used()};
  for (const auto& [stage, idle] : idle_)
    for (const std::unique_ptr<InFlight>& in_flight : idle)
      sizes.in_flight[stage] = std::max(sizes.in_flight[stage], in_flight->arena.most_used());
  return sizes;
}

void Executor::run(std::span<const Action> actions, const Execution& execution, model::Counts& counts) {
  make_parcels(most_messages_held(actions, placement_) + execution.messages_under_way);
  for (const Action& action : actions) {
    communicator_.progress();
    switch (action.kind) {
      case Kind::forward: forward(action, execution, counts); break;
      case Kind::backward:
      case Kind::backward_input: backward(action, execution, counts); break;
      case Kind::backward_weight: backward_weight(action, execution, counts); break;
      case Kind::receive_activation:
      case Kind::receive_gradient: receive(action, execution); break;
      case Kind::send_activation:
      case Kind::send_gradient: send(action); break;
    }
  }
  for (ParcelPointer& parcel : sending_) {
    parcel->transfer.wait();
    free_.push_back(std::move(parcel));
  }
  sending_.clear();
  QUINTET_CHECK(in_flight_.empty() && activations_.empty() && gradients_.empty(), "the list of actions ends early");
}

template <typename Compute>
void Executor::compute(const Action& action, const Execution& execution, const Compute& compute) {
  InFlight& in_flight = *in_flight_.at(key_of(action));
  const model::Observer observer = [&](const std::string& name, Tensor tensor) {
    execution.observer(action, name, tensor);
  };
  model::Pass made = pass(in_flight, execution, execution.observer ? &observer : nullptr);
  const Stopwatch stopwatch(computed_seconds_[{action.kind, action.stage}]);
  compute(stage(action.stage), made, in_flight);
}

void Executor::forward(const Action& action, const Execution& execution, model::Counts& counts) {
  const auto [stage_number, microbatch] = key_of(action);
  const bool is_last = stage_number == placement_.last_stage();
  InFlight& in_flight = stage_number == 0 ? open(key_of(action), execution) : *in_flight_.at(key_of(action));
  in_flight.arrival.wait();
  Tensor output;
  if (!is_last && placement_.hands_over(stage_number)) {
    output = open_with_input({stage_number + 1, microbatch}, execution).input;
  } else if (!is_last) {
    ParcelPointer& parcel = activations_[key_of(action)];
    parcel = take_parcel();
    output = parcel->message;
  }
  compute(action, execution, [&](const model::Stage& stage, model::Pass& pass, InFlight& under_way) {
    stage.forward(pass, under_way.input, output, under_way.saved);
  });
  if (execution.mode == model::Mode::evaluate) close(key_of(action), counts);
}

void Executor::backward(const Action& action, const Execution& execution, model::Counts& counts) {
  const auto [stage_number, microbatch] = key_of(action);
  ParcelPointer& gradient = gradients_[key_of(action)];
  if (stage_number == placement_.last_stage()) gradient = take_parcel();
  gradient->transfer.wait();
  compute(action, execution, [&](const model::Stage& stage, model::Pass& pass, InFlight& under_way) {
    if (action.kind == Kind::backward) {
      stage.backward(pass, under_way.saved, gradient->message);
    } else {
      stage.backward_input(pass, under_way.saved, gradient->message);
    }
  });
  if (stage_number == 0) {
    free_.push_back(std::move(gradient));
    gradients_.erase(key_of(action));
  } else if (placement_.hands_over(stage_number - 1)) {
    gradients_[{stage_number - 1, microbatch}] = std::move(gradient);
    gradients_.erase(key_of(action));
  }
  if (action.completes()) close(key_of(action), counts);
}

void Executor::backward_weight(const Action& action, const Execution& execution, model::Counts& counts) {
  compute(action, execution, [](const model::Stage& stage, model::Pass& pass, InFlight& under_way) {
    stage.backward_weight(pass, under_way.saved);
  });
  close(key_of(action), counts);
}

Executor::InFlight& Executor::open(Key key, const Execution& execution) {
  std::vector<std::unique_ptr<InFlight>>& idle = idle_[key.first];
  if (idle.empty()) idle.push_back(std::make_unique<InFlight>(device_, ledger_, expected_.in_flight[key.first]));
  std::unique_ptr<InFlight>& place = in_flight_[key];
  QUINTET_CHECK(!place, "microbatch {} begins twice on stage {}", key.second, key.first);
  place = std::move(idle.back());
  idle.pop_back();
  InFlight& opened = *place;

  data::Batch& batch = execution.batch(key.second);
  const auto upload = [&]<typename T>(std::vector<T>& values) {
    const Shape shape = {static_cast<int64_t>(values.size())};
    const Tensor tensor = opened.arena.allocate(kDTypeOf<T>, shape);
    device_.copy(Tensor(values.data(), kDTypeOf<T>, shape), tensor);
    return tensor;
  };
  opened.batch = {.sequences = batch.size,
                  .tokens = upload(batch.tokens),
                  .targets = upload(batch.targets),
                  .positions = upload(batch.positions),
                  .rows = upload(batch.rows),
                  .host_rows = batch.rows,
                  .first_ordinal = batch.rows.front() / config_.model.seq_length,
                  .document_starts = {},
                  .all_document_starts = {}};
  if (!batch.document_starts.empty()) opened.batch.document_starts = upload(batch.document_starts);
  if (!batch.all_document_starts.empty() && context_.sees_whole_sequences())
    opened.batch.all_document_starts = upload(batch.all_document_starts);
  return opened;
}

Executor::InFlight& Executor::open_with_input(Key key, const Execution& execution) {
  InFlight& opened = open(key, execution);
  opened.input = opened.arena.allocate(types_.compute, message_shape_);
  return opened;
}

void Executor::close(Key key, model::Counts& counts) {
  const auto closed = in_flight_.find(key);
  stage(key.first).add_counts(closed->second->saved, counts);
  closed->second->arena.reset();
  idle_[key.first].push_back(std::move(closed->second));
  in_flight_.erase(closed);
}

void Executor::receive(const Action& action, const Execution& execution) {
  const std::string what = message_of(action);
  if (action.kind == Kind::receive_activation) {
    InFlight& opened = open_with_input(key_of(action), execution);
    opened.arrival = pipeline_.receive(opened.input, peer(action), what, channel_of(action));
  } else {
    ParcelPointer& parcel = gradients_[key_of(action)];
    parcel = take_parcel();
    parcel->transfer = pipeline_.receive(parcel->message, peer(action), what, channel_of(action));
  }
}

void Executor::send(const Action& action) {
  std::map<Key, ParcelPointer>& made = action.kind == Kind::send_activation ? activations_ : gradients_;
  const auto parcel = made.find(key_of(action));
  QUINTET_CHECK(parcel != made.end(), "nothing is there for {}", to_string(action));
  parcel->second->transfer =
      pipeline_.send(parcel->second->message, peer(action), message_of(action), channel_of(action));
  sending_.push_back(std::move(parcel->second));
  made.erase(parcel);
}

model::Pass Executor::pass(InFlight& in_flight, const Execution& execution, const model::Observer* observer) {
  return {.device = device_,
          .saved = in_flight.arena,
          .scratch = scratch_,
          .logits = logits_,
          .tensor = tensor_,
          .context = context_,
          .units = execution.units,
          .batch = in_flight.batch,
          .types = types_,
          .mode = execution.mode,
          .recompute = config_.parallel.recompute,
          .dropout = config_.model.dropout,
          .seed = static_cast<uint64_t>(config_.run.seed),
          .loss_scale = execution.loss_scale,
          .dispatch = dispatch_ ? &*dispatch_ : nullptr,
          .observer = observer};
}

void Executor::make_parcels(int64_t count) {
  if (placement_.ranks == 1) count = 1;  // nothing travels
  while (std::ssize(free_) < count) {
    ParcelPointer& made = free_.emplace_back(std::make_unique<Parcel>());
    made->memory =
        device::Buffer(device_, ledger_, device::Owner::communication, types_.compute, message_shape_.elements());
    made->message = made->memory.tensor().reshaped(message_shape_);
  }
}

Executor::ParcelPointer Executor::take_parcel() {
  // The message posted last is left on its way: a device would have to wait for it before it goes on.
  for (size_t i = 0; i + 1 < sending_.size(); ++i) {
    if (!sending_[i]->transfer.done()) continue;
    free_.push_back(std::move(sending_[i]));
    sending_.erase(sending_.begin() + static_cast<std::ptrdiff_t>(i--));
  }
  if (free_.empty()) {
    QUINTET_CHECK(!sending_.empty(), "no message is on its way, and none is free");
    sending_.front()->transfer.wait();
    free_.push_back(std::move(sending_.front()));
    sending_.erase(sending_.begin());
  }
  ParcelPointer parcel = std::move(free_.back());
  free_.pop_back();
  return parcel;
}

}  // namespace quintet::pipeline
