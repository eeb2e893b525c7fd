#include "lib/pipeline/engine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "lib/base/integers.h"
#include "lib/optimizer/clipping.h"
#include "lib/pipeline/memory_bound.h"
#include "lib/pipeline/rank_device.h"
#include "lib/pipeline/schedule.h"
#include "lib/pipeline/schedule_check.h"

namespace quintet::pipeline {
namespace {

device::ElementTypes types_of(const config::Precision& precision) {
  device::ElementTypes types;
  switch (precision.compute) {
    case config::ComputeType::fp64: types = {DType::fp64, DType::fp64, DType::fp64, DType::fp64}; break;
    case config::ComputeType::fp32: break;
    case config::ComputeType::bf16: types.compute = DType::bf16; break;
  }
  if (precision.gradients == config::GradientType::bf16) types.gradients = DType::bf16;
  return types;
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

// Ranks along these axes read different sequences, along those different tokens.
constexpr AxisSet kBatchAxes = {Axis::dp, Axis::ep};
constexpr AxisSet kTokenAxes = {Axis::dp, Axis::ep, Axis::cp};

void sum_count(comm::ProcessGroup& group, int64_t& count) {
  group.all_reduce(Tensor(&count, DType::i64, {1}), comm::Reduction::sum, "count of tokens").wait();
}

double mean(const ExactSum& sum, int64_t count) { return count == 0 ? 0 : sum.value() / static_cast<double>(count); }

}  // namespace

Engine::Engine(const config::Config& config, comm::Communicator& communicator, device::Device& device,
               const std::optional<AvailableMemory>& available)
    : config_(config),
      communicator_(communicator),
      device_(device),
      device_scope_(communicator, device, make_rank_groups(communicator, device)),
      types_(types_of(config.precision)),
      rope_(device, ledger_, config.model, types_.statistics),
      store_(communicator.mesh(), communicator.mesh().coordinate_of(communicator.placement().rank)),
      placement_(placement_of(config)),
      model_parameters_(pipeline::model_parameters(config, communicator.mesh())) {
  Plan plan = plan_training(config, microbatches());
  messages_under_way_ = messages_under_way(plan);
  actions_ = std::move(plan.lists[static_cast<size_t>(pipeline_rank())]);
  for (const int64_t stage : placement_.stages_of(pipeline_rank()))
    stages_.emplace_back(store_, config, rope_, part_of_stage(config, stage),
                         stages_.empty() ? nullptr : stages_.front().embedding());
  const auto bucket_bytes = static_cast<int64_t>(config.parallel.zero.bucket_mb * 1024 * 1024);
  store_.lay_out(types_, bucket_bytes, /*by_unit=*/config.parallel.zero.stage >= 2);
  ArenaSizes arenas;
  if (device.computes()) {
    const MemoryBound bound = memory_bound(config, communicator.placement());
    if (available) require_memory(config, communicator, bound, *available);
    arenas = bound.arenas;
  }
  ledger_.advise([&config](device::Owner owner) { return memory_advice(config, owner); });
  optimizer_.emplace(device, ledger_, communicator, store_, config.optimizer, config.parallel.zero);
  optimizer_->initialise(static_cast<uint64_t>(config.run.seed));
  executor_.emplace(config, communicator, device, ledger_, placement_, stages_, types_, arenas);
}

int64_t Engine::data_rank() const { return communicator_.group(kBatchAxes, std::nullopt).rank(); }

int64_t Engine::data_ranks() const { return communicator_.mesh().size(kBatchAxes); }

int64_t Engine::microbatches() const {
  return div_exact(config_.train.global_batch_size, config_.train.micro_batch_size * data_ranks());
}

model::Counts Engine::run_microbatches(const ActionObserver& observer) {
  Execution execution{
      .units = *optimizer_,
      .mode = model::Mode::train,
      .loss_scale = loss_scale_,
      .batch = [this](int64_t microbatch) -> data::Batch& { return batches_[static_cast<size_t>(microbatch)]; },
      .observer = observer,
      .messages_under_way = messages_under_way_};
  model::Counts counts{.loss = {}, .routing = model::RoutingTotals::zero(config_.model)};
  executor_->run(actions_, execution, counts);
  return counts;
}

Gradients Engine::forward_backward(const LoadMicrobatch& load) {
  Gradients result;
  batches_.resize(static_cast<size_t>(microbatches()));
  for (size_t j = 0; j < batches_.size(); ++j) {
    load(static_cast<int64_t>(j), batches_[j]);
    result.counted += batches_[j].counted;
  }
  sum_count(communicator_.group(kTokenAxes, Axis::dp), result.counted);
  loss_scale_ = result.counted == 0 ? 0 : 1.0 / static_cast<double>(result.counted);
  optimizer_->begin_step(microbatches());

  model::Counts counted = run_microbatches({});
  result.routing = std::move(counted.routing);
  std::array<ExactSum, 2> sums = {counted.loss};  // loss, squared norm
  optimizer_->finish_reduction();
  optimizer_->add_squared_norm(sums[1]);
  sum_over_ranks(communicator_.group(AxisSet::all(), Axis::dp), sums, "loss and squared norm");
  if (config_.model.moe) {
    std::vector<int64_t> words = result.routing.words();
    // Biases move by it; what is for the metrics alone is not counted.
    const bool counts = config_.model.moe->balance == config::MoeBalance::bias;
    communicator_.group(AxisSet::all(), counts ? std::optional(Axis::dp) : std::nullopt)
        .all_reduce(Tensor(words.data(), DType::i64, {std::ssize(words)}), comm::Reduction::sum, "what routers did")
        .wait();
    result.routing.set_words(words);
  }
  result.loss = mean(sums[0], result.counted);
  result.norm = std::sqrt(sums[1].value());
  return result;
}

void Engine::update(double learning_rate, const Gradients& gradients) {
  optimizer_->update(learning_rate, optimizer::clip_scale(config_.optimizer, gradients.norm));
  for (const model::Stage& stage : stages_) stage.balance(device_, gradients.routing.loads);
}

double Engine::evaluate(int64_t microbatches, const LoadMicrobatch& load) {
  int64_t counted = 0;
  data::Batch batch;
  Execution execution{
      .units = *optimizer_, .mode = model::Mode::evaluate, .loss_scale = 0, .batch = {}, .observer = {}};
  int64_t begun = 0;  // microbatches, in ascending order, each on the first of this rank's stages
  execution.batch = [&](int64_t microbatch) -> data::Batch& {
    load(microbatch, batch);
    if (microbatch == begun) {
      counted += batch.counted;
      ++begun;
    }
    return batch;
  };
  model::Counts counts;
  const Plan plan = plan_evaluation(placement_, microbatches);
  execution.messages_under_way = pipeline::messages_under_way(plan);
  optimizer_->begin_evaluation();
  executor_->run(plan.lists[static_cast<size_t>(pipeline_rank())], execution, counts);
  std::array<ExactSum, 1> sums = {counts.loss};
  sum_count(communicator_.group(kTokenAxes, std::nullopt), counted);
  sum_over_ranks(communicator_.group(AxisSet::all(), std::nullopt), sums, "validation loss");
  return mean(sums[0], counted);
}

std::string Engine::first_non_finite() {
  // When a tensor arises in the model's computation, on whatever rank: phase (weights, passes, gradients of
  // parameters), microbatch, direction, stage in that direction, tensor of the stage.
  using Moment = std::array<int64_t, 5>;
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  std::map<std::string, int64_t> stages;  // of parameters
  for (const ModelParameter& parameter : model_parameters_) stages.emplace(parameter.spec.name, parameter.stage);
  Moment first = {kNever};
  std::string found;
  int64_t looked_at = 0;
  const auto look = [&](int64_t phase, const Action& action, int64_t place, const std::string& name, Tensor tensor) {
    const bool forwards = action.kind == Action::Kind::forward;
    const Moment moment = {phase, action.microbatch, forwards ? 0 : 1, forwards ? action.stage : -action.stage, place};
    if (!(moment < first) || device_.all_finite(tensor)) return;
    first = moment;
    found = name;
  };
  using Kind = Action::Kind;
  const auto in = [&](Kind kind, const parallel::Parameter& parameter) {
    return Action{kind, stages.at(parameter.name()), 0};
  };
  std::map<const parallel::Parameter*, int64_t> places;
  for (const parallel::Parameter& parameter : store_.parameters()) {
    places.emplace(&parameter, std::ssize(places));
    if (!parameter.spec().trained)
      look(0, in(Kind::forward, parameter), places.at(&parameter), parameter.name(), parameter.weight());
  }
  for (const parallel::Bucket& bucket : store_.buckets())
    for (const parallel::ParameterSpan& span :
         parallel::ParameterStore::spans(bucket, held(bucket, store_.weights_extent())))
      look(0, in(Kind::forward, *span.parameter), places.at(span.parameter), span.parameter->name(),
           store_.weights(span.range));
  optimizer_->begin_search([&](const parallel::Parameter& parameter) {
    look(2, in(Kind::backward, parameter), places.at(&parameter), "the gradient of " + parameter.name(),
         parameter.gradient());
  });
  run_microbatches([&](const Action& action, const std::string& name, Tensor tensor) {
    look(1, action, looked_at++, name, tensor);
  });

  // The earliest find wins, the lowest rank among equals; it tells the others.
  comm::ProcessGroup& world = communicator_.world();
  std::vector<Moment> finds(static_cast<size_t>(world.size()));
  const int64_t words = std::ssize(first);
  const std::vector<int64_t> counts(finds.size(), words);
  world
      .all_gather(Tensor(first.data(), DType::i64, {words}), counts,
                  Tensor(finds.data(), DType::i64, {world.size() * words}), "first tensor that is not finite")
      .wait();
  const int64_t finder = std::min_element(finds.begin(), finds.end()) - finds.begin();
  if (finds[static_cast<size_t>(finder)].front() == kNever)
    return "no tensor of a single rank; the sum over ranks overflows";
  found += " on " + communicator_.mesh().label_of(communicator_.placement().rank);
  auto length = static_cast<int64_t>(found.size());
  world.broadcast(Tensor(&length, DType::i64, {1}), finder, "length of a name").wait();
  found.resize(static_cast<size_t>(length));
  world.broadcast(Tensor(found.data(), DType::u8, {length}), finder, "name of a tensor").wait();
  return found;
}

}  // namespace quintet::pipeline
