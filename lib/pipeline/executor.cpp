#include "lib/pipeline/executor.h"

#include <chrono>

#include <fmt/core.h>

namespace quintet::pipeline {
namespace {

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

}  // namespace

Executor::Executor(const config::Config& config, comm::Communicator& communicator, device::Device& device,
                   device::MemoryLedger& ledger, const model::Stage& stage, const device::ElementTypes& types)
    : config_(config),
      communicator_(communicator),
      device_(device),
      ledger_(ledger),
      stage_(stage),
      types_(types),
      pipeline_(communicator.group({Axis::pp}, Axis::pp)),
      tensor_(communicator, config.parallel.sequence_parallel),
      context_(communicator, config.parallel.context, config.model.seq_length),
      message_shape_(
          {tensor_.local_rows(config.train.micro_batch_size * context_.local_positions()), config.model.hidden_size}),
      scratch_(device, ledger, "scratch") {
  if (config.model.moe) dispatch_.emplace(communicator, device, tensor_, config.model.moe->experts);
}

void Executor::run(std::span<const Action> actions, const Execution& execution, model::Counts& counts) {
  const int64_t stage = pipeline_.rank();
  for (const Action& action : actions) {
    communicator_.progress();
    const int64_t microbatch = action.microbatch;
    switch (action.kind) {
      case Action::Kind::receive_activation: {
        InFlight& opened = open(microbatch, execution);
        opened.input = opened.arena.allocate(types_.compute, message_shape_);
        opened.arrival =
            pipeline_.receive(opened.input, stage - 1, fmt::format("activations of microbatch {}", microbatch));
        break;
      }
      case Action::Kind::receive_gradient: {
        ParcelPointer& parcel = gradients_[microbatch];
        parcel = take_parcel();
        parcel->transfer =
            pipeline_.receive(parcel->message, stage + 1, fmt::format("gradients of microbatch {}", microbatch));
        break;
      }
      case Action::Kind::forward: forward(action, execution, counts); break;
      case Action::Kind::backward: backward(action, execution, counts); break;
      case Action::Kind::send_activation: post_send(activations_, microbatch, stage + 1, "activations"); break;
      case Action::Kind::send_gradient: post_send(gradients_, microbatch, stage - 1, "gradients"); break;
    }
  }
  for (ParcelPointer& parcel : sending_) {
    parcel->transfer.wait();
    free_.push_back(std::move(parcel));
  }
  sending_.clear();
  QUINTET_CHECK(in_flight_.empty() && activations_.empty() && gradients_.empty(), "the list of actions ends early");
}

void Executor::forward(const Action& action, const Execution& execution, model::Counts& counts) {
  const model::StagePart& part = stage_.part();
  InFlight& in_flight = part.is_first ? open(action.microbatch, execution) : *in_flight_.at(action.microbatch);
  in_flight.arrival.wait();
  ParcelPointer output = part.is_last ? nullptr : take_parcel();
  const model::Observer observer = [&](const std::string& name, Tensor tensor) {
    execution.observer(action, name, tensor);
  };
  model::Pass forward = pass(in_flight, execution, execution.observer ? &observer : nullptr);
  {
    const Stopwatch stopwatch(computed_seconds_);
    stage_.forward(forward, in_flight.input, output ? output->message : Tensor{}, in_flight.saved);
  }
  if (output) activations_[action.microbatch] = std::move(output);
  if (execution.mode == model::Mode::evaluate) close(action.microbatch, counts);
}

void Executor::backward(const Action& action, const Execution& execution, model::Counts& counts) {
  const model::StagePart& part = stage_.part();
  InFlight& in_flight = *in_flight_.at(action.microbatch);
  ParcelPointer& gradient = gradients_[action.microbatch];
  if (part.is_last) gradient = take_parcel();
  gradient->transfer.wait();
  const model::Observer observer = [&](const std::string& name, Tensor tensor) {
    execution.observer(action, name, tensor);
  };
  model::Pass backward = pass(in_flight, execution, execution.observer ? &observer : nullptr);
  {
    const Stopwatch stopwatch(computed_seconds_);
    stage_.backward(backward, in_flight.saved, gradient->message);
  }
  if (part.is_first) {
    free_.push_back(std::move(gradient));
    gradients_.erase(action.microbatch);
  }
  close(action.microbatch, counts);
}

Executor::InFlight& Executor::open(int64_t microbatch, const Execution& execution) {
  if (idle_.empty()) idle_.push_back(std::make_unique<InFlight>(device_, ledger_));
  std::unique_ptr<InFlight>& place = in_flight_[microbatch];
  QUINTET_CHECK(!place, "microbatch {} begins twice", microbatch);
  place = std::move(idle_.back());
  idle_.pop_back();
  InFlight& opened = *place;

  data::Batch& batch = execution.batch(microbatch);
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

void Executor::close(int64_t microbatch, model::Counts& counts) {
  const auto closed = in_flight_.find(microbatch);
  stage_.add_counts(closed->second->saved, counts);
  closed->second->arena.reset();
  idle_.push_back(std::move(closed->second));
  in_flight_.erase(closed);
}

model::Pass Executor::pass(InFlight& in_flight, const Execution& execution, const model::Observer* observer) {
  return {.device = device_,
          .saved = in_flight.arena,
          .scratch = scratch_,
          .tensor = tensor_,
          .context = context_,
          .units = execution.units,
          .batch = in_flight.batch,
          .types = types_,
          .mode = execution.mode,
          .dropout = config_.model.dropout,
          .seed = static_cast<uint64_t>(config_.run.seed),
          .loss_scale = execution.loss_scale,
          .dispatch = dispatch_ ? &*dispatch_ : nullptr,
          .observer = observer};
}

Executor::ParcelPointer Executor::take_parcel() {
  // The message posted last is left on its way: a device would have to wait for it before it goes on.
  for (size_t i = 0; i + 1 < sending_.size(); ++i) {
    if (!sending_[i]->transfer.done()) continue;
    free_.push_back(std::move(sending_[i]));
    sending_.erase(sending_.begin() + static_cast<std::ptrdiff_t>(i--));
  }
  ParcelPointer parcel;
  if (free_.empty()) {
    parcel = std::make_unique<Parcel>();
    parcel->memory = device::Buffer(device_, ledger_, "pipeline messages", types_.compute, message_shape_.elements());
    parcel->message = parcel->memory.tensor().reshaped(message_shape_);
  } else {
    parcel = std::move(free_.back());
    free_.pop_back();
  }
  return parcel;
}

void Executor::post_send(std::map<int64_t, ParcelPointer>& outbox, int64_t microbatch, int64_t to, const char* what) {
  const auto made = outbox.find(microbatch);
  QUINTET_CHECK(made != outbox.end(), "no {} of microbatch {} to send", what, microbatch);
  made->second->transfer =
      pipeline_.send(made->second->message, to, fmt::format("{} of microbatch {}", what, microbatch));
  sending_.push_back(std::move(made->second));
  outbox.erase(made);
}

}  // namespace quintet::pipeline
