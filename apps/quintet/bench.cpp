#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include "apps/quintet/bench_kernels.h"
#include "apps/quintet/bench_pipeline.h"
#include "apps/quintet/commands.h"
#include "apps/quintet/launch.h"
#include "apps/quintet/yardsticks.h"
#include "lib/base/integers.h"
#include "lib/base/random.h"
#include "lib/config/load.h"
#include "lib/device/cuda/cuda_device.h"
#include "lib/device/device.h"
#include "lib/device/memory.h"
#include "lib/pipeline/engine.h"
#include "lib/pipeline/rank_device.h"
#include "lib/training/flops.h"

namespace quintet {
namespace {

// Median seconds of a call, after one to warm up; about `budget` seconds in all, or one call if that takes longer.
template <typename Function>
double median_seconds(Function&& call, double budget = 0.2) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds;
  double total = 0;
  call();
  while (total < budget && seconds.size() < 1000) {
    const auto start = Clock::now();
    call();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    total += seconds.back();
  }
  std::nth_element(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2), seconds.end());
  return seconds[seconds.size() / 2];
}

// A device with an arena of random operands.
class Bench {
 public:
  Bench(int threads, DType dtype)
      : device_(device::make_cpu_device(threads)), arena_(*device_, ledger_, device::Owner::workspace), dtype_(dtype) {}

  device::Device& device() { return *device_; }
  // Weights and activations.
  Tensor random(Shape shape) {
    const Tensor tensor = arena_.allocate(dtype_, shape);
    visit_storage_type(dtype_, [&]<typename T>() {
      uint64_t index = 0;
      for (T& value : tensor.span<T>()) value = T(static_cast<float>(philox(1, index++, 0)[0]) * 0x1p-32F - 0.5F);
    });
    return tensor;
  }
  // Gradients of parameters and statistics: zeros.
  Tensor sums(Shape shape) {
    const Tensor tensor = arena_.allocate(dtype_ == DType::bf16 ? DType::fp32 : dtype_, shape);
    device_->fill(tensor, 0);
    return tensor;
  }

 private:
  std::unique_ptr<device::Device> device_;
  device::MemoryLedger ledger_;
  device::Arena arena_;
  DType dtype_;
};

struct Options {
  int threads = 1;
  std::string dtype = "fp32";
  std::string gpu_dtype = "bf16";
  bool tiny = false;
  int64_t ranks = 0;
  std::vector<int64_t> ranks_shown = {2, 4, 8, 16};
  int64_t chunks = 2;
  int64_t steps = 10;
  double seconds = 0;
  std::vector<int64_t> shape;
  std::string config;
  std::vector<std::string> overrides;
  std::string key;                  // of compare
  std::vector<std::string> values;  // of the key
};

DType dtype_of(const Options& options) {
  if (options.dtype == "bf16") return DType::bf16;
  return options.dtype == "fp64" ? DType::fp64 : DType::fp32;
}

int bench_gemm(const Options& options) {
  struct Case {
    int64_t tokens, out, in;
  };
  std::vector<Case> cases = {{256, 768, 768},   {256, 3072, 768},  {256, 768, 3072}, {2048, 384, 384},
                             {2048, 1536, 384}, {2048, 384, 1536}, {256, 50304, 768}};
  if (!options.shape.empty()) cases = {{options.shape[0], options.shape[1], options.shape[2]}};
  fmt::print("{:>6} {:>6} {:>6}   forward  d_input d_weight   GFLOP/s, {} on {} threads\n", "T", "out", "in",
             options.dtype, options.threads);
  for (const Case& c : cases) {
    Bench bench(options.threads, dtype_of(options));
    const Tensor x = bench.random({c.tokens, c.in});
    const Tensor weight = bench.random({c.out, c.in});
    const Tensor y = bench.random({c.tokens, c.out});
    const Tensor gradient = bench.sums({c.out, c.in});
    const double flops = 2.0 * static_cast<double>(c.tokens) * static_cast<double>(c.out) * static_cast<double>(c.in);
    device::Device& device = bench.device();
    const double forward = median_seconds([&] { device.linear_forward({.x = x, .weight = weight, .output = y}); });
    const double input =
        median_seconds([&] { device.linear_backward_input({.d_output = y, .weight = weight, .d_x = x}); });
    const double weights =
        median_seconds([&] { device.linear_backward_weight({.x = x, .d_output = y, .weight_gradient = gradient}); });
    fmt::print("{:>6} {:>6} {:>6}  {:>8.1f} {:>8.1f} {:>8.1f}\n", c.tokens, c.out, c.in, flops / forward / 1e9,
               flops / input / 1e9, flops / weights / 1e9);
  }
  return 0;
}

int bench_attention(const Options& options) {
  struct Case {
    int64_t batch, sequence, heads, head_dim;
  };
  std::vector<Case> cases = {{4, 64, 12, 64}, {8, 256, 6, 64}, {1, 2048, 12, 64}, {1, 2048, 8, 128}};
  if (!options.shape.empty()) cases = {{options.shape[0], options.shape[1], options.shape[2], options.shape[3]}};
  fmt::print("{:>4} {:>6} {:>4} {:>4}   forward backward   GFLOP/s (causal half), {} on {} threads\n", "B", "S", "N",
             "D", options.dtype, options.threads);
  for (const Case& c : cases) {
    Bench bench(options.threads, dtype_of(options));
    const auto heads = [&] { return bench.random({c.batch, c.sequence, c.heads, c.head_dim}); };
    const Tensor q = heads(), k = heads(), v = heads(), output = heads();
    const Tensor d_output = heads(), d_q = heads(), d_k = heads(), d_v = heads();
    const Tensor log_sum_exp = bench.sums({c.batch, c.heads, c.sequence});
    const auto s = static_cast<double>(c.sequence);
    const double product = static_cast<double>(c.batch * c.heads * c.head_dim) * s * s;  // one, causal half
    device::Device& device = bench.device();
    const double forward = median_seconds([&] {
      device.attention_forward({.query = q, .key = k, .value = v, .output = output, .log_sum_exp = log_sum_exp});
    });
    const double backward = median_seconds([&] {
      device.attention_backward({.query = q,
                                 .key = k,
                                 .value = v,
                                 .output = output,
                                 .log_sum_exp = log_sum_exp,
                                 .d_output = d_output,
                                 .d_query = d_q,
                                 .d_key = d_k,
                                 .d_value = d_v});
    });
    fmt::print("{:>4} {:>6} {:>4} {:>4}  {:>8.1f} {:>8.1f}\n", c.batch, c.sequence, c.heads, c.head_dim,
               2 * product / forward / 1e9, 5 * product / backward / 1e9);
  }
  return 0;
}

int bench_collectives(const Options& options, comm::Communicator& communicator) {
  const int64_t ranks = communicator.placement().world_size;
  const bool speaks = communicator.placement().rank == 0;
  communicator.set_mesh(Mesh({{ranks, 1, 1, 1, 1}}, {Axis::tp, Axis::cp, Axis::ep, Axis::dp, Axis::pp}));
  comm::ProcessGroup& group = communicator.group({Axis::dp}, Axis::dp);
  const std::unique_ptr<device::Device> device = device::make_cpu_device(1);
  device::MemoryLedger ledger;
  if (speaks)
    fmt::print("{:>12}   all-reduce reduce-scatter all-gather   milliseconds, {} ranks ({})\n", "bytes", ranks,
               communicator.placement().launch);
  for (const int64_t elements : {1024L, 65536L, 1048576L, 16777216L}) {
    device::Buffer whole(*device, ledger, device::Owner::workspace, DType::fp32, elements);
    const std::vector<int64_t> counts = group.even_counts(elements);
    int64_t begin = 0;
    for (int64_t i = 0; i < group.rank(); ++i) begin += counts[static_cast<size_t>(i)];
    const Tensor own = whole.slice(begin, counts[static_cast<size_t>(group.rank())]);
    // Ranks must call equally often, so the number of calls is fixed.
    const auto milliseconds = [&](auto&& post) {
      constexpr int kCalls = 5;
      post().wait();
      group.barrier();
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < kCalls; ++i) post().wait();
      group.barrier();
      return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count() / kCalls;
    };
    const double reduce = milliseconds([&] { return group.all_reduce(whole.tensor(), comm::Reduction::sum, "bench"); });
    const double scatter = milliseconds([&] { return group.reduce_scatter(whole.tensor(), counts, own, "bench"); });
    const double gather = milliseconds([&] { return group.all_gather(own, counts, whole.tensor(), "bench"); });
    if (speaks) fmt::print("{:>12}   {:>10.3f} {:>14.3f} {:>10.3f}\n", elements * 4, reduce, scatter, gather);
  }
  (void)options;
  return 0;
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// FLOPs a second that the GPUs of all ranks do at best, as rank 0 finds on its own; 0 on CPUs. The others wait.
double peak_of_gpus(const config::Config& config, comm::Communicator& communicator, device::Device& device) {
  if (device.queue() == nullptr) return 0;
  const comm::Placement& placement = communicator.placement();
  double peak = 0;
  if (placement.rank == 0) {
    const bool rounded = config.precision.compute == config::ComputeType::bf16;
    const int64_t nodes = placement.world_size / placement.local_size;
    const int64_t gpus = nodes * std::min<int64_t>(placement.local_size, device::cuda_devices());
    peak = static_cast<double>(gpus) * best_product(device, rounded ? DType::bf16 : DType::fp32);
  }
  communicator.world().barrier();
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

// A batch of random tokens.
void fill_with_random(const config::Config& config, const pipeline::Engine& engine, int64_t microbatch,
                      data::Batch& batch) {
  const int64_t sequence = config.model.seq_length;
  batch.size = config.train.micro_batch_size;
  batch.sequence_length = sequence;
  batch.tokens.clear(), batch.targets.clear(), batch.positions.clear(), batch.rows.clear();
  const auto add = [&](int64_t row) {
    const auto bits =
        philox(1, static_cast<uint64_t>(row), static_cast<uint64_t>(microbatch + 1000 * engine.data_rank()));
    batch.tokens.push_back(static_cast<int32_t>(bits[0] % static_cast<uint64_t>(config.model.vocab_size)));
    batch.targets.push_back(static_cast<int32_t>(bits[1] % static_cast<uint64_t>(config.model.vocab_size)));
    batch.positions.push_back(static_cast<int32_t>(row % sequence));
    batch.rows.push_back(row);
  };
  for (const data::Chunk& chunk : engine.chunks())
    for (int64_t sample = 0; sample < batch.size; ++sample)
      for (int64_t position = chunk.begin; position < chunk.end(); ++position) add(sample * sequence + position);
  batch.counted = std::ssize(batch.tokens);
}

// Whole steps on random tokens, after one to warm up: no data, no outputs. No step begins `limit` seconds after the
// first; 0: no limit.
StepTimes measure_steps(const config::Config& config, comm::Communicator& communicator, pipeline::Engine& engine,
                        int64_t steps, double limit) {
  StepTimes times;
  double spent = 0;
  for (int64_t step = 0; step < steps + 1; ++step) {
    if (step > 1 && is_over(communicator, spent, limit)) break;
    communicator.world().barrier();
    const auto start = std::chrono::steady_clock::now();
    const auto elapsed = [start] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    const pipeline::Executor::ComputedSeconds computed_before = engine.executor().computed_seconds();
    const pipeline::Gradients gradients = engine.forward_backward(
        [&](int64_t microbatch, data::Batch& batch) { fill_with_random(config, engine, microbatch, batch); });
    const double passed = elapsed();
    engine.update(1e-4, gradients);
    communicator.world().barrier();
    const double took = elapsed();
    spent += took;
    if (step == 0) continue;
    times.steps.push_back(took);
    times.passes.push_back(passed);
    for (const auto& [computation, total] : engine.executor().computed_seconds())
      times.computed[computation].push_back(total - computed_before.at(computation));
  }
  return times;
}

int bench_step(const Options& options, comm::Communicator& communicator) {
  const config::Config config = config::load(options.config, options.overrides, communicator.placement().world_size);
  communicator.set_mesh(Mesh(config.mesh.sizes(), config.mesh.order));
  const std::unique_ptr<device::Device> device = pipeline::make_rank_device(config, communicator.placement());
  const double peak = peak_of_gpus(config, communicator, *device);
  pipeline::Engine engine(config, communicator, *device);
  const StepTimes times = measure_steps(config, communicator, engine, options.steps, options.seconds);
  pipeline::Executor::ComputedSeconds computed;
  for (const auto& [computation, of_steps] : times.computed) computed[computation] = median_of(of_steps);
  show_pipeline(communicator, config, engine.microbatches(), computed, median_of(times.passes));
  if (communicator.placement().rank != 0) return 0;
  const auto [fastest, slowest] = std::minmax_element(times.steps.begin(), times.steps.end());
  const double median = median_of(times.steps);
  const auto tokens = static_cast<double>(config.train.global_batch_size * config.model.seq_length);
  const double flops = training::flops_per_token(config.model, engine.model_parameters());
  fmt::print(
      "{} ranks of {} threads: {:.1f} ms a step (fastest {:.1f}, slowest {:.1f}), {:.0f} tokens/s, {:.1f} GFLOP/s\n"
      "without the update: {:.1f} ms a step (fastest {:.1f})\n",
      communicator.placement().world_size, device->threads(), 1e3 * median, 1e3 * *fastest, 1e3 * *slowest,
      tokens / median, tokens * flops / median / 1e9, 1e3 * median_of(times.passes),
      1e3 * *std::min_element(times.passes.begin(), times.passes.end()));
  if (peak > 0)
    fmt::print("{:.1f}% of the speed of light, which is {:.1f} TFLOP/s, the best plain product's\n",
               100 * tokens * flops / median / peak, peak / 1e12);
  return 0;
}

// The same steps under several values of a key, in turns, so that what else the machine does meets all alike: medians
// of steps, and of each turn's ratio to the first value's.
int bench_compare(const Options& options, comm::Communicator& communicator) {
  constexpr int64_t kTurns = 7;
  std::vector<config::Config> configs;
  for (const std::string& value : options.values) {
    std::vector<std::string> overrides = options.overrides;
    overrides.push_back(options.key + "=" + value);
    configs.push_back(config::load(options.config, overrides, communicator.placement().world_size));
  }
  const Mesh mesh(configs.front().mesh.sizes(), configs.front().mesh.order);
  communicator.set_mesh(mesh);
  std::vector<std::vector<double>> seconds(configs.size()), ratios(configs.size());
  for (int64_t turn = 0; turn < kTurns; ++turn)
    for (size_t i = 0; i < configs.size(); ++i) {
      const auto device = pipeline::make_rank_device(configs[i], communicator.placement());
      pipeline::Engine engine(configs[i], communicator, *device);
      const StepTimes times = measure_steps(configs[i], communicator, engine, options.steps, options.seconds);
      seconds[i].push_back(median_of(times.steps));
      ratios[i].push_back(seconds[i].back() / seconds.front().back());
    }
  if (communicator.placement().rank != 0) return 0;
  for (size_t i = 0; i < configs.size(); ++i)
    fmt::print("{}={}: {:.1f} ms a step, {:.3f} of {}={}\n", options.key, options.values[i],
               1e3 * median_of(seconds[i]), median_of(ratios[i]), options.key, options.values.front());
  return 0;
}

}  // namespace

void add_bench(CLI::App& app, Run& run, int* argc, char*** argv) {
  auto options = std::make_shared<Options>();
  CLI::App* bench = app.add_subcommand("bench", "Measure this machine");
  bench->require_subcommand(1);

  const auto add_kernel_bench = [&](const char* name, const char* help, const char* shape, int dimensions,
                                    int (*measure)(const Options&)) {
    CLI::App* command = bench->add_subcommand(name, help);
    command->add_option("--threads", options->threads, "CPU threads")->check(CLI::Range(1, 1024));
    command->add_option("--dtype", options->dtype, "fp64, fp32 or bf16")
        ->check(CLI::IsMember({"fp64", "fp32", "bf16"}));
    command->add_option("--shape", options->shape, "This shape alone")
        ->delimiter(',')
        ->expected(dimensions)
        ->check(CLI::PositiveNumber)
        ->type_name(shape);
    command->callback([options, measure, &run] { run = [options, measure] { return measure(*options); }; });
  };
  add_kernel_bench("gemm", "Matrix products of typical layers", "T,OUT,IN", 3, bench_gemm);
  add_kernel_bench("attention", "Attention, forward and backward", "B,S,N,D", 4, bench_attention);

  CLI::App* kernels = bench->add_subcommand("kernels", "Each operation of a GPU against its bandwidth and peak");
  kernels->add_option("--dtype", options->gpu_dtype, "bf16 or fp32")->check(CLI::IsMember({"bf16", "fp32"}));
  kernels->add_flag("--tiny", options->tiny, "Shapes of some kilobytes, without times: to try the operations");
  kernels->callback([options, &run] {
    run = [options] { return bench_kernels(options->gpu_dtype == "bf16" ? DType::bf16 : DType::fp32, options->tiny); };
  });

  CLI::App* lists = bench->add_subcommand("pipeline", "Idle time and memory of the pipeline schedules, by their lists");
  lists->add_option("--ranks", options->ranks_shown, "Pipeline ranks")->delimiter(',')->check(CLI::Range(1, 256));
  lists->add_option("--chunks", options->chunks, "Stages a rank under interleaved")->check(CLI::Range(1, 64));
  lists->callback(
      [options, &run] { run = [options] { return bench_pipeline(options->ranks_shown, options->chunks); }; });

  const auto add_rank_bench = [&](const char* name, const char* help,
                                  int (*measure)(const Options&, comm::Communicator&)) {
    CLI::App* command = bench->add_subcommand(name, help);
    command->add_option("--ranks", options->ranks, "Thread ranks")->check(CLI::Range(1, 4096));
    command->callback([options, measure, argc, argv, &run] {
      run = [options, measure, argc, argv] {
        return run_ranks(options->ranks, argc, argv,
                         [&](comm::Communicator& communicator) { return measure(*options, communicator); });
      };
    });
    return command;
  };
  add_rank_bench("collectives", "Collectives over all ranks", bench_collectives);
  const auto add_step_options = [&](CLI::App* command) {
    command->add_option("CONFIG", options->config, "YAML file")->required();
    command->add_option("KEY=VALUE", options->overrides, "Overrides, such as mesh.dp=4");
    command->add_option("--steps", options->steps, "Measured steps, of a turn")->check(CLI::Range(1, 100000));
    command->add_option("--seconds", options->seconds, "Begin no further step after so many seconds; 0: no limit")
        ->check(CLI::NonNegativeNumber);
  };
  CLI::App* step = add_rank_bench("step", "Whole training steps of a config on random tokens", bench_step);
  add_step_options(step);
  CLI::App* compare = add_rank_bench("compare", "The same under several values of a key, in turns", bench_compare);
  add_step_options(compare);
  compare->add_option("--key", options->key, "Key that differs, such as parallel.zero.stage")->required();
  compare->add_option("--values", options->values, "Its values")->delimiter(',')->required();
}

}  // namespace quintet
