#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include "apps/quintet/bench_kernels.h"
#include "apps/quintet/bench_pipeline.h"
#include "apps/quintet/bench_steps.h"
#include "apps/quintet/commands.h"
#include "apps/quintet/launch.h"
#include "lib/base/random.h"
#include "lib/device/device.h"
#include "lib/device/memory.h"

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
  std::vector<int64_t> shape;
  StepBench steps;
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
    command->add_option("CONFIG", options->steps.config, "YAML file")->required();
    command->add_option("KEY=VALUE", options->steps.overrides, "Overrides, such as mesh.dp=4");
    command->add_option("--steps", options->steps.steps, "Measured steps, of a turn")->check(CLI::Range(1, 100000));
    command->add_option("--seconds", options->steps.seconds, "Begin no further step after so many seconds; 0: no limit")
        ->check(CLI::NonNegativeNumber);
  };
  CLI::App* step = add_rank_bench(
      "step", "Whole training steps of a config on random tokens",
      [](const Options& all, comm::Communicator& communicator) { return bench_step(all.steps, communicator); });
  add_step_options(step);
  CLI::App* compare = add_rank_bench(
      "compare", "The same under several values of a key, in turns",
      [](const Options& all, comm::Communicator& communicator) { return bench_compare(all.steps, communicator); });
  add_step_options(compare);
  compare->add_option("--key", options->steps.key, "Key that differs, such as parallel.zero.stage")->required();
  compare->add_option("--values", options->steps.values, "Its values")->delimiter(',')->required();
}

}  // namespace quintet
