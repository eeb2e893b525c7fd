#include "lib/training/trainer.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "lib/base/integers.h"
#include "lib/training/console.h"
#include "lib/training/dumps.h"
#include "lib/training/flops.h"
#include "lib/training/log.h"
#include "lib/training/memory_report.h"
#include "lib/training/metrics.h"
#include "lib/training/run_folder.h"
#include "lib/training/session.h"

namespace quintet::training {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

bool contains(const std::vector<int64_t>& steps, int64_t step) {
  return std::find(steps.begin(), steps.end(), step) != steps.end();
}

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
      : config_(config), folder_(run_folder(config)), session_(config, communicator) {
    open_folder();
    flops_per_token_ = flops_per_token(config.model, session_.engine().model_parameters());
    show_start();
  }

  // The console hears of an error once, from whoever starts the ranks; the log is told here.
  void note_end(const std::string& problem) { log_->note("ended     {}", problem); }

  int run() {
    dump_weights_after(0);
    const auto start = Clock::now();
    for (int64_t k = 1; k <= config_.train.steps; ++k) {
      const StepResult result = session_.step(k, [&] {
        if (contains(config_.logging.gradient_dump_steps, k)) dump_gradients(session_.engine(), folder_, k);
      });
      report(result);
      if (result.verdict == FaultPolicy::Verdict::stop) session_.stop_for(result);
      if (validates_after(k)) validate(k);
      dump_weights_after(k);
      if (result.signal != 0) return stopped_by(result);
    }
    show_memory_table(*log_, session_.communicator(), memory());
    log_->info("done      {} steps in {:.1f} s", config_.train.steps, seconds_since(start));
    return 0;
  }

 private:
  void open_folder();
  void show_start();
  MemoryPeaks memory() { return memory_peaks(session_.engine().ledger(), session_.device()); }  // of this rank
  void dump_weights_after(int64_t step) {
    if (contains(config_.logging.weight_dump_steps, step)) dump_weights(session_.engine(), config_, folder_, step);
  }
  StepMetrics metrics_of(const StepResult& result);
  void report(const StepResult& result);
  bool validates_after(int64_t step) const;
  void validate(int64_t step);
  int stopped_by(const StepResult& result);

  const config::Config& config_;
  std::string folder_;
  Session session_;
  std::optional<FolderLock> lock_;
  std::optional<Log> log_;
  std::optional<MetricsFile> metrics_;
  double flops_per_token_ = 0;
  double trained_seconds_ = 0;  // in steps of this run, without evaluation
};

void Trainer::open_folder() {
  std::string aside;
  if (session_.is_first_rank()) {
    lock_.emplace(folder_);
    aside = prepare_run_folder(config_);
  }
  session_.communicator().world().barrier();
  log_.emplace(folder_, session_.engine().rank(), config_.logging.level == config::LogLevel::debug);
  if (!session_.is_first_rank()) return;
  metrics_.emplace(folder_ + "/metrics.jsonl");
  if (!aside.empty())
    log_->info("EARLIER RUN without a checkpoint: its outputs now lie in {}; starting from step 1", aside);
}

void Trainer::show_start() {
  comm::Communicator& communicator = session_.communicator();
  log_->info("run       {}", folder_);
  show_mesh(*log_, communicator, session_.device().description());
  show_model(*log_, config_, parameter_elements(session_.engine().model_parameters()), flops_per_token_);
  show_data(*log_, session_.data().training, session_.data().validation);
  show_stages(*log_, config_);
  show_memory(*log_, communicator, memory(), "before the first step");
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

StepMetrics Trainer::metrics_of(const StepResult& result) {
  StepMetrics metrics;
  metrics.step = result.step;
  metrics.loss = result.gradients.loss;
  metrics.grad_norm = result.gradients.norm;
  metrics.learning_rate = result.learning_rate;
  const int64_t tokens = config_.train.global_batch_size * config_.model.seq_length;
  metrics.tokens = result.step * tokens;
  metrics.step_seconds = result.seconds;
  metrics.tokens_per_second = static_cast<double>(tokens) / metrics.step_seconds;
  const auto ranks = static_cast<double>(session_.communicator().mesh().world_size());
  metrics.tflops_per_rank = metrics.tokens_per_second * flops_per_token_ / ranks / 1e12;
  if (config_.device.peak_tflops) metrics.mfu = metrics.tflops_per_rank / *config_.device.peak_tflops;
  metrics.memory = result.memory;
  metrics.comm_bytes = result.traffic.bytes;
  metrics.skipped = result.skipped();
  if (config_.model.moe) {
    const model::RoutingTotals& routing = result.gradients.routing;
    const model::RoutingFigures figures = model::figures_of(routing, config_);
    metrics.routing = {.aux_loss = figures.aux_loss,
                       .z_loss = figures.z_loss,
                       .max_expert_load = figures.max_expert_load,
                       .dropped_slots = routing.dropped,
                       .digest = routing.digest};
  }
  return metrics;
}

void Trainer::report(const StepResult& result) {
  const StepMetrics metrics = metrics_of(result);
  const int64_t step = result.step, steps = config_.train.steps;
  trained_seconds_ += result.seconds;
  const double seconds_left = trained_seconds_ / static_cast<double>(step) * static_cast<double>(steps - step);
  const bool logged = step % config_.logging.every == 0 || step == 1 || step == steps || metrics.skipped;
  if (metrics_) metrics_->write(metrics);
  if (logged) log_->info("{}", step_line(metrics, steps, seconds_left));
  log_->progress(progress_bar(metrics, steps, seconds_left));
  log_->debug("step {}: {:.3f} s, handed over {}", step, result.seconds,
              bytes_by_axis(session_.communicator().traffic()));
  if (step == 1) show_memory(*log_, session_.communicator(), memory(), "after the first step");
}

bool Trainer::validates_after(int64_t step) const {
  if (session_.validation_samples() == 0) return false;
  const int64_t every = config_.train.eval_every;
  return step == config_.train.steps || (every > 0 && step % every == 0);
}

void Trainer::validate(int64_t step) {
  const double loss = session_.evaluate();
  if (metrics_) metrics_->write_validation(step, loss);
  log_->info("step {}/{}  validation loss {:.4f} over {} samples", step, config_.train.steps, loss,
             session_.validation_samples());
}

int Trainer::stopped_by(const StepResult& result) {
  log_->info("stopped   by signal {} after step {}; this build saves no checkpoint to go on from", result.signal,
             result.step);
  return 128 + narrow<int>(result.signal);
}

}  // namespace

int train(const config::Config& config, comm::Communicator& communicator) {
  Trainer trainer(config, communicator);
  try {
    return trainer.run();
  } catch (const std::exception& problem) {
    trainer.note_end(problem.what());
    throw;
  }
}

}  // namespace quintet::training
