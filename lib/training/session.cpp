#include "lib/training/session.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lib/base/integers.h"
#include "lib/config/enums.h"
#include "lib/optimizer/learning_rate.h"
#include "lib/pipeline/rank_device.h"
#include "lib/training/signals.h"

namespace quintet::training {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::vector<data::Entry> entries_of(const std::vector<config::DataSource>& sources) {
  std::vector<data::Entry> entries;
  for (const config::DataSource& source : sources) entries.push_back({.path = source.path, .weight = source.weight});
  return entries;
}

comm::Communicator& prepare(comm::Communicator& communicator, const config::Config& config) {
  communicator.set_mesh(mesh_of(config));
  communicator.set_watchdog(config.fault.watchdog_seconds);
  return communicator;
}

pipeline::AvailableMemory look_for_memory(const device::Device& device, comm::Communicator& communicator) {
  const pipeline::AvailableMemory available = pipeline::available_memory(device, communicator.placement());
  communicator.world().barrier();  // all have looked before one takes
  return available;
}

}  // namespace

Mesh mesh_of(const config::Config& config) { return Mesh(config.mesh.sizes(), config.mesh.order); }

data::Split open_data(const config::Config& config) {
  data::DatasetOptions training;
  training.entries = entries_of(config.data.train);
  training.reading = {.format = std::string(config::name_of(config.data.format)), .tokenizer = config.data.tokenizer};
  if (config.data.end_of_document) training.reading.end_of_document = narrow<int32_t>(*config.data.end_of_document);
  training.documents = {.end_token = training.reading.end_of_document,
                        .mask_attention = config.data.document_mask,
                        .mask_end = config.data.mask_end_of_document};
  training.sequence_length = config.model.seq_length;
  training.seed = static_cast<uint64_t>(config.run.seed);
  training.shuffle = config.data.shuffle;
  data::ValidationOptions validation;
  if (const auto* fraction = std::get_if<double>(&config.data.validation)) validation.fraction = *fraction;
  if (const auto* sources = std::get_if<std::vector<config::DataSource>>(&config.data.validation))
    validation.entries = entries_of(*sources);
  return data::open_split(training, validation);
}

Session::Session(const config::Config& config, comm::Communicator& communicator)
    : Session(config, communicator, open_data(config)) {}

Session::Session(const config::Config& config, comm::Communicator& communicator, data::Split data)
    : config_(config),
      communicator_(prepare(communicator, config)),
      data_(std::move(data)),
      device_(pipeline::make_rank_device(config, communicator.placement())),
      engine_(config, communicator, *device_, look_for_memory(*device_, communicator)),
      policy_(config.fault) {}

data::BatchPlace Session::place() const {
  return {.data_rank = engine_.data_rank(),
          .data_ranks = engine_.data_ranks(),
          .size = config_.train.micro_batch_size,
          .chunks = engine_.chunks()};
}

StepResult Session::step(int64_t k, const std::function<void()>& before_update) {
  StepResult result;
  result.step = k;
  result.learning_rate = optimizer::learning_rate(config_.optimizer, config_.schedule, k);
  communicator_.traffic() = {};
  const auto start = Clock::now();
  data::BatchPlace place = this->place();
  place.base = (k - 1) * config_.train.global_batch_size;
  result.gradients = engine_.forward_backward([&](int64_t microbatch, data::Batch& batch) {
    place.microbatch = microbatch;
    data::fill_batch(data_.training, place, batch);
  });
  result.verdict = policy_.judge(result.gradients);
  double elsewhere = 0;
  if (before_update) {
    const comm::Traffic counted = communicator_.traffic();
    const auto left = Clock::now();
    before_update();
    elsewhere = seconds_since(left);
    communicator_.traffic() = counted;
  }
  if (!result.skipped()) engine_.update(result.learning_rate, result.gradients);
  agree(result);
  result.seconds = seconds_since(start) - elsewhere;
  return result;
}

// What every rank must know of all others after a step goes in one reduction.
void Session::agree(StepResult& result) {
  const MemoryPeaks memory = memory_peaks(engine_.ledger(), *device_);
  comm::Traffic& traffic = result.traffic;
  traffic = communicator_.traffic();
  std::vector<int64_t> words = {requested_signal(), memory == memory_ ? 0 : 1};
  for (PerAxis<int64_t>* counts : {&traffic.bytes, &traffic.operations})
    words.insert(words.end(), counts->values.begin(), counts->values.end());
  communicator_.world()
      .all_reduce(Tensor(words.data(), DType::i64, {std::ssize(words)}), comm::Reduction::max,
                  "what a step tells all ranks")
      .wait();
  std::copy_n(words.begin() + 2, kAxisCount, traffic.bytes.values.begin());
  std::copy_n(words.begin() + 2 + kAxisCount, kAxisCount, traffic.operations.values.begin());
  result.signal = words[0];
  memory_ = memory;
  if (words[1] != 0) fullest_ = fullest_rank(communicator_, memory_);
  result.memory = fullest_.peaks;
}

void Session::stop_for(const StepResult& result) {
  const pipeline::Gradients& gradients = result.gradients;
  const std::string limit = policy_.is_past_limit()
                                ? fmt::format("; more than fault.max_skipped_steps ({}) steps in a row were skipped",
                                              config_.fault.max_skipped_steps)
                                : "";
  if (std::isfinite(gradients.loss) && std::isfinite(gradients.norm))
    fail(ExitCode::numeric, "step {}: grad_norm {} is past fault.spike_sigma{}", result.step, gradients.norm, limit);
  fail(ExitCode::numeric, "step {}: loss is {} and grad_norm {}; the first tensor that is not finite is {}{}",
       result.step, gradients.loss, gradients.norm, engine_.first_non_finite(), limit);
}

int64_t Session::validation_samples() const {
  if (!data_.validation) return 0;
  return std::min(config_.train.eval_steps * config_.train.global_batch_size, data_.validation->windows());
}

double Session::evaluate() {
  data::BatchPlace place = this->place();
  place.limit = validation_samples();
  return engine_.evaluate(data::microbatches_for(place.limit, place.data_ranks, place.size),
                          [&](int64_t microbatch, data::Batch& batch) {
                            place.microbatch = microbatch;
                            data::fill_batch(*data_.validation, place, batch);
                          });
}

}  // namespace quintet::training
