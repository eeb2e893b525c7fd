#include "lib/training/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "lib/base/integers.h"
#include "lib/config/enums.h"
#include "lib/data/dataset.h"
#include "lib/optimizer/learning_rate.h"
#include "lib/pipeline/engine.h"
#include "lib/pipeline/rank_device.h"
#include "lib/training/console.h"
#include "lib/training/dumps.h"
#include "lib/training/fault_policy.h"
#include "lib/training/flops.h"
#include "lib/training/log.h"
#include "lib/training/memory_report.h"
#include "lib/training/metrics.h"
#include "lib/training/run_folder.h"
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

bool contains(const std::vector<int64_t>& steps, int64_t step) {
  return std::find(steps.begin(), steps.end(), step) != steps.end();
}

// What every step's end tells all ranks: the largest of each over them.
struct Agreement {
  int64_t signal = 0;
  int64_t memory_grew = 0;  // on any rank since the step before
  PerAxis<int64_t> comm_bytes{};
};

// "1024 bytes over dp, 0 bytes over tp, ...".
std::string bytes_by_axis(const comm::Traffic& traffic) {
  std::string text;
  for (const Axis axis : kAxes)
    text += fmt::format("{}{} bytes over {}", text.empty() ? "" : ", ", traffic.bytes[axis], name_of(axis));
  return text;
}

class Trainer {
 public:
  Trainer(const config::Config& config, comm::Communicator& communicator)
      : config_(config),
        communicator_(communicator),
        folder_(run_folder(config)),
        device_(pipeline::make_rank_device(config, communicator.placement())),
        data_(open_data(config)) {
    const pipeline::AvailableMemory available = pipeline::available_memory(*device_, communicator.placement());
    communicator.world().barrier();  // all have looked before one takes
    engine_.emplace(config, communicator, *device_, available);
    open_folder();
    policy_.emplace(config.fault);
    flops_per_token_ = flops_per_token(config.model, engine_->model_parameters());
    show_start();
  }

  // The console hears of an error once, from whoever starts the ranks; the log is told here.
  void note_end(const std::string& problem) { log_->note("ended     {}", problem); }

  int run() {
    if (contains(config_.logging.weight_dump_steps, 0)) dump_weights(*engine_, config_, folder_, 0);
    const auto start = Clock::now();
    for (int64_t step = 1; step <= config_.train.steps; ++step) {
      train_step(step);
      if (validates_after(step)) validate(step);
      if (contains(config_.logging.weight_dump_steps, step)) dump_weights(*engine_, config_, folder_, step);
      if (const int code = stop_code(step); code != 0) return code;
    }
    show_memory_table(*log_, communicator_, memory_peaks(engine_->ledger(), *device_));
    log_->info("done      {} steps in {:.1f} s", config_.train.steps, seconds_since(start));
    return 0;
  }

 private:
  void open_folder();
  void show_start();
  void train_step(int64_t step);
  [[noreturn]] void stop_for_non_finite(int64_t step, const pipeline::Gradients& gradients);
  Agreement agree();
  bool validates_after(int64_t step) const;
  void validate(int64_t step);
  int stop_code(int64_t step);

  const config::Config& config_;
  comm::Communicator& communicator_;
  std::string folder_;
  std::unique_ptr<device::Device> device_;
  data::Split data_;
  std::optional<pipeline::Engine> engine_;
  std::optional<FolderLock> lock_;
  std::optional<FaultPolicy> policy_;
  std::optional<Log> log_;
  std::optional<MetricsFile> metrics_;
  double flops_per_token_ = 0;
  double trained_seconds_ = 0;  // in steps of this run, without evaluation
  Agreement agreed_;
  MemoryPeaks memory_;  // of this rank
  FullestRank fullest_;
};

void Trainer::open_folder() {
  std::string aside;
  if (engine_->rank() == 0) {
    lock_.emplace(folder_);
    aside = prepare_run_folder(config_);
  }
  communicator_.world().barrier();
  log_.emplace(folder_, engine_->rank(), config_.logging.level == config::LogLevel::debug);
  if (engine_->rank() != 0) return;
  metrics_.emplace(folder_ + "/metrics.jsonl");
  if (!aside.empty())
    log_->info("EARLIER RUN without a checkpoint: its outputs now lie in {}; starting from step 1", aside);
}

void Trainer::show_start() {
  log_->info("run       {}", folder_);
  show_mesh(*log_, communicator_, device_->description());
  show_model(*log_, config_, parameter_elements(engine_->model_parameters()), flops_per_token_);
  show_data(*log_, data_.training, data_.validation);
  show_stages(*log_, config_);
  show_memory(*log_, communicator_, memory_peaks(engine_->ledger(), *device_), "before the first step");
  if (config_.schedule.warmup_steps >= config_.train.steps)
    log_->info("note      schedule.warmup_steps ({}) lasts as long as train.steps ({}): the run is all warm-up",
               config_.schedule.warmup_steps, config_.train.steps);
  if (config_.precision.gradients == config::GradientType::bf16)
    log_->info(
        "note      precision.gradients bf16 rounds sums of gradients: layouts and microbatches agree less than in "
        "fp32");
  log_->info("note      this build saves no checkpoints; of checkpoint.* only resume is used");
  if (config_.logging.tensorboard)
    log_->info("note      this build writes no TensorBoard events; metrics.jsonl has every figure");
}

void Trainer::train_step(int64_t step) {
  const auto start = Clock::now();
  const config::Train& train = config_.train;
  const double rate = optimizer::learning_rate(config_.optimizer, config_.schedule, step);
  communicator_.traffic() = {};

  const pipeline::Gradients gradients = engine_->forward_backward([&](int64_t microbatch, data::Batch& batch) {
    data::fill_batch(data_.training,
                     {.base = (step - 1) * train.global_batch_size,
                      .microbatch = microbatch,
                      .data_rank = engine_->data_rank(),
                      .data_ranks = engine_->data_ranks(),
                      .size = train.micro_batch_size,
                      .chunks = engine_->chunks()},
                     batch);
  });
  const comm::Traffic counted = communicator_.traffic();  // a dump's bytes and seconds do not count
  const auto dump_start = Clock::now();
  if (contains(config_.logging.gradient_dump_steps, step)) dump_gradients(*engine_, folder_, step);
  const double dump_seconds = seconds_since(dump_start);
  communicator_.traffic() = counted;
  const FaultPolicy::Verdict verdict = policy_->judge(gradients);
  if (verdict == FaultPolicy::Verdict::apply) engine_->update(rate, gradients);
  agreed_ = agree();
  if (agreed_.memory_grew != 0) fullest_ = fullest_rank(communicator_, memory_);

  StepMetrics metrics;
  metrics.step = step;
  metrics.loss = gradients.loss;
  metrics.grad_norm = gradients.norm;
  metrics.learning_rate = rate;
  const int64_t tokens = train.global_batch_size * config_.model.seq_length;
  metrics.tokens = step * tokens;
  metrics.step_seconds = seconds_since(start) - dump_seconds;
  metrics.tokens_per_second = static_cast<double>(tokens) / metrics.step_seconds;
  const auto ranks = static_cast<double>(communicator_.mesh().world_size());
  metrics.tflops_per_rank = metrics.tokens_per_second * flops_per_token_ / ranks / 1e12;
  if (config_.device.peak_tflops) metrics.mfu = metrics.tflops_per_rank / *config_.device.peak_tflops;
  metrics.memory = fullest_.peaks;
  metrics.comm_bytes = agreed_.comm_bytes;
  metrics.skipped = verdict != FaultPolicy::Verdict::apply;
  if (config_.model.moe) {
    const model::RoutingFigures figures = model::figures_of(gradients.routing, config_);
    metrics.routing = {.aux_loss = figures.aux_loss,
                       .z_loss = figures.z_loss,
                       .max_expert_load = figures.max_expert_load,
                       .dropped_slots = gradients.routing.dropped,
                       .digest = gradients.routing.digest};
  }

  trained_seconds_ += metrics.step_seconds;
  const double seconds_left = trained_seconds_ / static_cast<double>(step) * static_cast<double>(train.steps - step);
  const bool logged = step % config_.logging.every == 0 || step == 1 || step == train.steps || metrics.skipped;
  if (metrics_) metrics_->write(metrics);
  if (logged) log_->info("{}", step_line(metrics, train.steps, seconds_left));
  log_->progress(progress_bar(metrics, train.steps, seconds_left));
  log_->debug("step {}: {:.3f} s, handed over {}", step, metrics.step_seconds, bytes_by_axis(counted));
  if (step == 1) show_memory(*log_, communicator_, memory_, "after the first step");
  if (verdict == FaultPolicy::Verdict::stop) stop_for_non_finite(step, gradients);
}

void Trainer::stop_for_non_finite(int64_t step, const pipeline::Gradients& gradients) {
  const std::string limit = policy_->is_past_limit()
                                ? fmt::format("; more than fault.max_skipped_steps ({}) steps in a row were skipped",
                                              config_.fault.max_skipped_steps)
                                : "";
  if (std::isfinite(gradients.loss) && std::isfinite(gradients.norm))
    fail(ExitCode::numeric, "step {}: grad_norm {} is past fault.spike_sigma{}", step, gradients.norm, limit);
  fail(ExitCode::numeric, "step {}: loss is {} and grad_norm {}; the first tensor that is not finite is {}{}", step,
       gradients.loss, gradients.norm, engine_->first_non_finite(), limit);
}

Agreement Trainer::agree() {
  const MemoryPeaks memory = memory_peaks(engine_->ledger(), *device_);
  std::array<int64_t, 2 + kAxisCount> words = {requested_signal(), memory == memory_ ? 0 : 1};
  memory_ = memory;
  const PerAxis<int64_t>& bytes = communicator_.traffic().bytes;
  std::copy(bytes.values.begin(), bytes.values.end(), words.begin() + 2);
  communicator_.world()
      .all_reduce(Tensor(words.data(), DType::i64, {static_cast<int64_t>(words.size())}), comm::Reduction::max,
                  "what a step tells all ranks")
      .wait();
  Agreement agreed{.signal = words[0], .memory_grew = words[1], .comm_bytes = {}};
  std::copy(words.begin() + 2, words.end(), agreed.comm_bytes.values.begin());
  return agreed;
}

bool Trainer::validates_after(int64_t step) const {
  if (!data_.validation) return false;
  const int64_t every = config_.train.eval_every;
  return step == config_.train.steps || (every > 0 && step % every == 0);
}

void Trainer::validate(int64_t step) {
  const config::Train& train = config_.train;
  const int64_t samples = std::min(train.eval_steps * train.global_batch_size, data_.validation->windows());
  const int64_t microbatches = data::microbatches_for(samples, engine_->data_ranks(), train.micro_batch_size);
  const double loss = engine_->evaluate(microbatches, [&](int64_t microbatch, data::Batch& batch) {
    data::fill_batch(*data_.validation,
                     {.base = 0,
                      .microbatch = microbatch,
                      .data_rank = engine_->data_rank(),
                      .data_ranks = engine_->data_ranks(),
                      .size = train.micro_batch_size,
                      .limit = samples,
                      .chunks = engine_->chunks()},
                     batch);
  });
  if (metrics_) metrics_->write_validation(step, loss);
  log_->info("step {}/{}  validation loss {:.4f} over {} samples", step, train.steps, loss, samples);
}

int Trainer::stop_code(int64_t step) {
  if (agreed_.signal == 0) return 0;
  log_->info("stopped   by signal {} after step {}; this build saves no checkpoint to go on from", agreed_.signal,
             step);
  return 128 + narrow<int>(agreed_.signal);
}

}  // namespace

int train(const config::Config& config, comm::Communicator& communicator) {
  communicator.set_mesh(Mesh(config.mesh.sizes(), config.mesh.order));
  communicator.set_watchdog(config.fault.watchdog_seconds);
  Trainer trainer(config, communicator);
  try {
    return trainer.run();
  } catch (const std::exception& problem) {
    trainer.note_end(problem.what());
    throw;
  }
}

}  // namespace quintet::training
