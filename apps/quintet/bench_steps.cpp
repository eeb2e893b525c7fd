#include "apps/quintet/bench_steps.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <span>
#include <utility>

#include <fmt/core.h>

#include "apps/quintet/bench_pipeline.h"
#include "apps/quintet/yardsticks.h"
#include "lib/base/random.h"
#include "lib/config/load.h"
#include "lib/data/token_source.h"
#include "lib/device/cuda/cuda_device.h"
#include "lib/training/flops.h"
#include "lib/training/session.h"

namespace quintet {
namespace {

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Any number of random tokens, in no memory.
class RandomTokens : public data::TokenSource {
 public:
  RandomTokens(int64_t count, int64_t vocabulary) : count_(count), vocabulary_(static_cast<uint64_t>(vocabulary)) {}

  int64_t token_count() const override { return count_; }
  void read(int64_t begin, std::span<int32_t> tokens) const override {
    auto place = static_cast<uint64_t>(begin);
    for (int32_t& token : tokens) token = static_cast<int32_t>(philox(1, place++, 0)[0] % vocabulary_);
  }
  std::vector<int64_t> document_starts(int64_t, int64_t) const override { return {}; }
  std::vector<data::SourceFile> files() const override { return {}; }

 private:
  int64_t count_;
  uint64_t vocabulary_;
};

// A step's samples, which every step reads again.
data::Split random_data(const config::Config& config) {
  const data::DatasetOptions options{.sequence_length = config.model.seq_length, .shuffle = false};
  const int64_t tokens = config.train.global_batch_size * config.model.seq_length + 1;
  auto source = std::make_shared<RandomTokens>(tokens, config.model.vocab_size);
  return {.training = data::Dataset(options, {{.name = "random tokens", .tokens = data::TokenRange(source)}}),
          .validation = std::nullopt};
}

// FLOPs a second that the GPUs of all ranks do at best, as rank 0 finds on its own; 0 on CPUs. The others wait.
double peak_of_gpus(training::Session& session) {
  if (session.device().queue() == nullptr) return 0;
  const comm::Placement& placement = session.communicator().placement();
  double peak = 0;
  if (placement.rank == 0) {
    const bool rounded = session.config().precision.compute == config::ComputeType::bf16;
    const int64_t nodes = placement.world_size / placement.local_size;
    const int64_t gpus = nodes * std::min<int64_t>(placement.local_size, device::cuda_devices());
    peak = static_cast<double>(gpus) * best_product(session.device(), rounded ? DType::bf16 : DType::fp32);
  }
  session.communicator().world().barrier();
  return peak;
}

// Whether the time for measuring is over on any rank.
bool is_over(comm::Communicator& communicator, double spent, double limit) {
  if (limit == 0) return false;
  int64_t over = spent > limit ? 1 : 0;
  communicator.world().all_reduce(Tensor(&over, DType::i64, {1}), comm::Reduction::max, "time").wait();
  return over != 0;
}

// Seconds of measured steps, each list sorted in no way.
struct StepTimes {
  std::vector<double> steps, passes;  // whole, and without the update
  // What computations took of each step, by kind and stage.
  std::map<std::pair<pipeline::Action::Kind, int64_t>, std::vector<double>> computed;
};

StepTimes measure_steps(training::Session& session, const StepBench& options) {
  StepTimes times;
  double spent = 0;
  const pipeline::Executor& executor = session.engine().executor();
  for (int64_t k = 1; k <= options.steps + 1; ++k) {
    if (k > 2 && is_over(session.communicator(), spent, options.seconds)) break;
    session.communicator().world().barrier();
    const auto start = std::chrono::steady_clock::now();
    const auto elapsed = [start] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    const pipeline::Executor::ComputedSeconds computed_before = executor.computed_seconds();
    double passed = 0;
    const training::StepResult result = session.step(k, [&] { passed = elapsed(); });
    if (result.verdict == training::FaultPolicy::Verdict::stop) session.stop_for(result);
    session.communicator().world().barrier();
    const double took = elapsed();
    spent += took;
    if (k == 1) continue;
    times.steps.push_back(took);
    times.passes.push_back(passed);
    for (const auto& [computation, total] : executor.computed_seconds())
      times.computed[computation].push_back(total - computed_before.at(computation));
  }
  return times;
}

}  // namespace

int bench_step(const StepBench& options, comm::Communicator& communicator) {
  const config::Config config = config::load(options.config, options.overrides, communicator.placement().world_size);
  training::Session session(config, communicator, random_data(config));
  const double peak = peak_of_gpus(session);
  const StepTimes times = measure_steps(session, options);
  pipeline::Executor::ComputedSeconds computed;
  for (const auto& [computation, of_steps] : times.computed) computed[computation] = median_of(of_steps);
  show_pipeline(communicator, config, session.engine().microbatches(), computed, median_of(times.passes));
  if (!session.is_first_rank()) return 0;
  const auto [fastest, slowest] = std::minmax_element(times.steps.begin(), times.steps.end());
  const double median = median_of(times.steps);
  const auto tokens = static_cast<double>(config.train.global_batch_size * config.model.seq_length);
  const double flops = training::flops_per_token(config.model, session.engine().model_parameters());
  fmt::print(
      "{} ranks of {} threads: {:.1f} ms a step (fastest {:.1f}, slowest {:.1f}), {:.0f} tokens/s, {:.1f} GFLOP/s\n"
      "without the update: {:.1f} ms a step (fastest {:.1f})\n",
      communicator.placement().world_size, session.device().threads(), 1e3 * median, 1e3 * *fastest, 1e3 * *slowest,
      tokens / median, tokens * flops / median / 1e9, 1e3 * median_of(times.passes),
      1e3 * *std::min_element(times.passes.begin(), times.passes.end()));
  if (peak > 0)
    fmt::print("{:.1f}% of the speed of light, which is {:.1f} TFLOP/s, the best plain product's\n",
               100 * tokens * flops / median / peak, peak / 1e12);
  return 0;
}

int bench_compare(const StepBench& options, comm::Communicator& communicator) {
  constexpr int64_t kTurns = 7;
  std::vector<config::Config> configs;
  for (const std::string& value : options.values) {
    std::vector<std::string> overrides = options.overrides;
    overrides.push_back(options.key + "=" + value);
    configs.push_back(config::load(options.config, overrides, communicator.placement().world_size));
    if (training::mesh_of(configs.back()) != training::mesh_of(configs.front()))
      fail(ExitCode::config,
           "--values: {}={} has another mesh than {}={}; the ranks of one run keep theirs: use bench step", options.key,
           value, options.key, options.values.front());
  }
  std::vector<std::vector<double>> seconds(configs.size()), ratios(configs.size());
  for (int64_t turn = 0; turn < kTurns; ++turn)
    for (size_t i = 0; i < configs.size(); ++i) {
      training::Session session(configs[i], communicator, random_data(configs[i]));
      const StepTimes times = measure_steps(session, options);
      seconds[i].push_back(median_of(times.steps));
      ratios[i].push_back(seconds[i].back() / seconds.front().back());
    }
  if (communicator.placement().rank != 0) return 0;
  for (size_t i = 0; i < configs.size(); ++i)
    fmt::print("{}={}: {:.1f} ms a step, {:.3f} of {}={}\n", options.key, options.values[i],
               1e3 * median_of(seconds[i]), median_of(ratios[i]), options.key, options.values.front());
  return 0;
}

}  // namespace quintet
