#include "lib/pipeline/engine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "lib/base/integers.h"
#include "lib/optimizer/clipping.h"
#include "lib/pipeline/schedule.h"

namespace quintet::pipeline {
namespace {

DType dtype_of(config::ComputeType compute) {
  switch (compute) {
    case config::ComputeType::fp64: return DType::fp64;
    case config::ComputeType::fp32: return DType::fp32;
    case config::ComputeType::bf16: return DType::bf16;
  }
  QUINTET_CHECK(false, "unknown compute type");
}

// Sums over all ranks at once; integer words make it exact.
template <size_t kCount>
void sum_over_ranks(comm::ProcessGroup& group, std::array<ExactSum, kCount>& sums, std::string_view what) {
  std::array<int64_t, kCount * ExactSum::kWords> words;
  for (size_t i = 0; i < kCount; ++i) {
    sums[i].normalise();
    std::copy_n(sums[i].words().begin(), ExactSum::kWords, words.begin() + i * ExactSum::kWords);
  }
  group.all_reduce(Tensor(words.data(), DType::i64, {static_cast<int64_t>(words.size())}), comm::Reduction::sum, what)
      .wait();
  for (size_t i = 0; i < kCount; ++i)
    std::copy_n(words.begin() + i * ExactSum::kWords, ExactSum::kWords, sums[i].words().begin());
}

// Ranks along these axes read different sequences.
constexpr AxisSet kBatchAxes = {Axis::dp, Axis::ep};

void sum_count(comm::ProcessGroup& group, int64_t& count) {
  group.all_reduce(Tensor(&count, DType::i64, {1}), comm::Reduction::sum, "count of tokens").wait();
}

double mean(const ExactSum& sum, int64_t count) { return count == 0 ? 0 : sum.value() / static_cast<double>(count); }

}  // namespace

Engine::Engine(const config::Config& config, comm::Communicator& communicator, device::Device& device,
               int64_t available_bytes)
    : config_(config),
      communicator_(communicator),
      device_(device),
      dtype_(dtype_of(config.precision.compute)),
      rope_(device, ledger_, config.model, dtype_),
      store_(communicator.mesh(), communicator.mesh().coordinate_of(communicator.placement().rank)),
      scratch_(device, ledger_, "scratch") {
  stage_.emplace(store_, config.model, rope_);
  const auto bucket_bytes = static_cast<int64_t>(config.parallel.zero.bucket_mb * 1024 * 1024);
  const int64_t pieces = communicator.mesh().size({Axis::dp, Axis::ep, Axis::cp});
  store_.lay_out(dtype_, pieces, bucket_bytes);
  check_memory(available_bytes);
  store_.allocate(device, ledger_);
  optimizer_.emplace(device, ledger_, communicator, store_, config.optimizer, config.parallel.zero);
  store_.initialise(static_cast<uint64_t>(config.run.seed), device.threads());
}

void Engine::check_memory(int64_t available_bytes) const {
  constexpr double kMiB = 1024.0 * 1024.0;
  const int64_t shards =
      config_.parallel.zero.stage >= 1 ? communicator_.mesh().size({Axis::dp, Axis::ep, Axis::cp}) : 1;
  // Weights and gradients whole, two moments sharded; activations come on top.
  const int64_t state = (2 * store_.flat_elements() + 2 * (store_.flat_elements() / shards)) * size_of(dtype_);
  const int64_t ranks = communicator_.placement().local_size;
  if (state <= available_bytes / ranks) return;
  fail(ExitCode::config,
       "model: parameters, gradients and optimizer state of {} ranks on node {} need {:.0f} MiB before any activation, "
       "and {:.0f} MiB are free; choose a smaller model, fewer ranks a node or a higher parallel.zero.stage",
       ranks, communicator_.placement().node, static_cast<double>(state) / kMiB * static_cast<double>(ranks),
       static_cast<double>(available_bytes) / kMiB);
}

int64_t Engine::data_rank() const { return communicator_.group(kBatchAxes, std::nullopt).rank(); }

int64_t Engine::data_ranks() const { return communicator_.mesh().size(kBatchAxes); }

int64_t Engine::microbatches() const {
  return div_exact(config_.train.global_batch_size, config_.train.micro_batch_size * data_ranks());
}

Engine::InFlight& Engine::open(int64_t microbatch, data::Batch& batch) {
  if (idle_.empty()) idle_.push_back(std::make_unique<InFlight>(device_, ledger_));
  const auto place = static_cast<size_t>(microbatch);
  if (in_flight_.size() <= place) in_flight_.resize(place + 1);
  in_flight_[place] = std::move(idle_.back());
  idle_.pop_back();
  InFlight& opened = *in_flight_[place];

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
                  .rows = upload(batch.rows)};
  return opened;
}

void Engine::close(int64_t microbatch) {
  std::unique_ptr<InFlight>& closed = in_flight_[static_cast<size_t>(microbatch)];
  closed->arena.reset();
  idle_.push_back(std::move(closed));
}

model::Pass Engine::pass(InFlight& in_flight, bool training) {
  return {.device = device_,
          .saved = in_flight.arena,
          .scratch = scratch_,
          .batch = in_flight.batch,
          .dtype = dtype_,
          .dropout = training ? config_.model.dropout : 0,
          .seed = static_cast<uint64_t>(config_.run.seed),
          .loss_scale = loss_scale_,
          .observer = observer_};
}

void Engine::run_actions(ExactSum& loss, bool reduce) {
  const int64_t last = microbatches() - 1;
  const model::GradientsDone reduce_finished = [this](size_t first, size_t end) {
    optimizer_->gradients_done(first, end);
    communicator_.progress();
  };
  const int64_t stages = communicator_.mesh().size(Axis::pp);
  const int64_t stage = store_.coordinate()[Axis::pp];
  for (const Action action : actions(config_.parallel.pipeline.schedule, stages, stage, microbatches())) {
    communicator_.progress();
    if (action.kind == Action::Kind::forward) {
      InFlight& opened = open(action.microbatch, batches_[static_cast<size_t>(action.microbatch)]);
      model::Pass forward = pass(opened, /*training=*/true);
      stage_->forward(forward, opened.saved, loss);
    } else {
      InFlight& opened = *in_flight_[static_cast<size_t>(action.microbatch)];
      model::Pass backward = pass(opened, /*training=*/true);
      const bool completes = reduce && action.microbatch == last;
      stage_->backward(backward, opened.saved, completes ? reduce_finished : model::GradientsDone{});
      close(action.microbatch);
    }
  }
}

Gradients Engine::forward_backward(const LoadMicrobatch& load) {
  Gradients result;
  batches_.resize(static_cast<size_t>(microbatches()));
  for (size_t j = 0; j < batches_.size(); ++j) {
    load(static_cast<int64_t>(j), batches_[j]);
    result.counted += batches_[j].counted;
  }
  sum_count(communicator_.group(kBatchAxes, Axis::dp), result.counted);
  loss_scale_ = result.counted == 0 ? 0 : 1.0 / static_cast<double>(result.counted);
  optimizer_->begin_step();

  std::array<ExactSum, 2> sums;  // loss, squared norm
  run_actions(sums[0], /*reduce=*/true);
  optimizer_->finish_reduction();
  optimizer_->add_squared_norm(sums[1]);
  sum_over_ranks(communicator_.group(AxisSet::all(), Axis::dp), sums, "loss and squared norm");
  result.loss = mean(sums[0], result.counted);
  result.norm = std::sqrt(sums[1].value());
  return result;
}

void Engine::update(double learning_rate, const Gradients& gradients) {
  optimizer_->update(learning_rate, optimizer::clip_scale(config_.optimizer, gradients.norm));
}

double Engine::evaluate(int64_t microbatches, const LoadMicrobatch& load) {
  int64_t counted = 0;
  std::array<ExactSum, 1> sums;
  data::Batch batch;
  for (int64_t j = 0; j < microbatches; ++j) {
    communicator_.progress();
    load(j, batch);
    counted += batch.counted;
    InFlight& opened = open(j, batch);
    model::Pass forward = pass(opened, /*training=*/false);
    stage_->forward(forward, opened.saved, sums[0]);
    close(j);
  }
  sum_count(communicator_.group(kBatchAxes, std::nullopt), counted);
  sum_over_ranks(communicator_.group(AxisSet::all(), std::nullopt), sums, "validation loss");
  return mean(sums[0], counted);
}

std::string Engine::first_non_finite() {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  int64_t looked_at = 0;
  int64_t found_at = kNone;
  std::string found;
  const model::Observer look = [&](const std::string& name, Tensor tensor) {
    if (found_at == kNone && !device_.all_finite(tensor)) {
      found_at = looked_at;
      found = name;
    }
    ++looked_at;
  };
  for (const parallel::Parameter& parameter : store_.parameters()) look(parameter.name(), parameter.weight());
  device_.fill(store_.all_gradients(), 0);
  observer_ = &look;
  ExactSum loss;
  run_actions(loss, /*reduce=*/false);
  observer_ = nullptr;
  for (const parallel::Parameter& parameter : store_.parameters())
    look("the gradient of " + parameter.name(), parameter.gradient());

  // The earliest find wins, the lowest rank among equals; it tells the others.
  comm::ProcessGroup& world = communicator_.world();
  std::vector<int64_t> finds(static_cast<size_t>(world.size()));
  const std::vector<int64_t> one_each(static_cast<size_t>(world.size()), 1);
  world
      .all_gather(Tensor(&found_at, DType::i64, {1}), one_each, Tensor(finds.data(), DType::i64, {world.size()}),
                  "first tensor that is not finite")
      .wait();
  const int64_t finder = std::min_element(finds.begin(), finds.end()) - finds.begin();
  if (finds[static_cast<size_t>(finder)] == kNone) return "no tensor of a single rank; the sum over ranks overflows";
  found += " on " + communicator_.mesh().label_of(communicator_.placement().rank);
  auto length = static_cast<int64_t>(found.size());
  world.broadcast(Tensor(&length, DType::i64, {1}), finder, "length of a name").wait();
  found.resize(static_cast<size_t>(length));
  world.broadcast(Tensor(found.data(), DType::u8, {length}), finder, "name of a tensor").wait();
  return found;
}

}  // namespace quintet::pipeline
