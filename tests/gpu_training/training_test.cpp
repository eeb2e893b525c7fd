// The CUDA device trains as the CPU device does, on one rank and on ranks that share one GPU, whatever the order in
// which the GPU's streams go on.
#include <map>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "lib/base/dtype.h"
#include "tests/gpu_emulator/emulator.h"
#include "tests/support/training_run.h"

namespace quintet::testing {
namespace {

using Overrides = std::vector<std::string>;

constexpr double kTolerance = 2e-5;

// Small enough for an emulated GPU; the families' shapes keep what sets them apart.
const Overrides kSmall = {"precision.compute=fp32",    "train.steps=2",      "train.eval_steps=1",
                          "train.global_batch_size=4", "model.seq_length=8", "model.layers=2",
                          "model.hidden_size=32",      "model.heads=2",      "parallel.zero.bucket_mb=0.02"};
const Overrides kFewer = {"train.global_batch_size=2"};
const Overrides kGpt2 = with(gpt2(), kSmall), kLlama = with(llama(), with(kSmall, {"model.kv_heads=1"})),
                kQwen3 = with(qwen3(), kSmall);

Run train_on_gpu(const Overrides& overrides, const Sizes& sizes = {}, uint64_t seed = 0) {
  gpu_emulator::set_seed(seed);
  return train(with(overrides, {"device.kind=cuda"}), sizes);
}

void require_equal_to_cpu(const Overrides& overrides, const std::vector<Sizes>& layouts,
                          const std::vector<uint64_t>& seeds = {0}) {
  const Run reference = train(with(overrides, {"device.kind=cpu"}));
  for (const Sizes& sizes : layouts) {
    Run first;
    for (const uint64_t seed : seeds) {
      INFO(sizes.text() << ", order " << seed);
      const Run run = train_on_gpu(overrides, sizes, seed);
      require_equal_training(run, reference, kTolerance);
      if (seed == seeds.front()) {
        first = run;
      } else {
        require_same_bits(run, first);
      }
    }
  }
}

// What communication queues on streams of its own, in no order with some of what its rank computes.
struct Beside {
  int64_t sums = 0, copies = 0;
};

Beside beside_computation(const Overrides& overrides, const Sizes& sizes) {
  gpu_emulator::record_streams();
  train_on_gpu(overrides, sizes);
  const std::vector<gpu_emulator::StreamUse> uses = gpu_emulator::recorded_streams();
  std::map<std::thread::id, int> computing;  // the stream of each rank's products
  for (const auto& use : uses)
    if (use.what == "product") computing[use.thread] = use.stream;
  Beside beside;
  for (size_t i = 0; i < uses.size(); ++i) {
    const auto& use = uses[i];
    const bool sum = use.what.find("fold") != std::string::npos;
    if ((!sum && use.what != "copy") || computing.count(use.thread) == 0 || use.stream == computing[use.thread])
      continue;
    const std::vector<bool> in_order = gpu_emulator::in_order_with(uses, i);
    const auto is_beside = [&](size_t other) {
      const std::string& what = uses[other].what;
      return !in_order[other] && uses[other].thread == use.thread && uses[other].stream == computing[use.thread] &&
             what != "event" && what != "wait";
    };
    for (size_t other = 0; other < uses.size(); ++other) {
      if (!is_beside(other)) continue;
      ++(sum ? beside.sums : beside.copies);
      break;
    }
  }
  return beside;
}

}  // namespace

TEST_CASE("a GPU trains GPT-2, Llama and Qwen3 as the CPU does", "[quick][cuda]") {
  for (const Overrides& model : {kGpt2, kLlama, kQwen3}) require_equal_to_cpu(model, {{}});
}

TEST_CASE("tensor ranks that share a GPU train as one CPU rank does", "[quick][cuda]") {
  require_equal_to_cpu(kGpt2, {{.tp = 2}});
  require_equal_to_cpu(with(kQwen3, kFewer), {{.tp = 2}}, {0, 1, 2});
}

TEST_CASE("pipeline stages that share a GPU train as one CPU rank does", "[quick][cuda]") {
  require_equal_to_cpu(with(kGpt2, kFewer), {{.pp = 2}}, {0, 1, 2});
}

TEST_CASE("schedules of several stages a rank and of backwards in parts train on a GPU as one CPU rank does",
          "[quick][cuda]") {
  const Overrides base = with(kGpt2, with(kFewer, {"model.layers=4"}));
  for (const Overrides& schedule :
       {Overrides{"parallel.pipeline.schedule=interleaved", "parallel.pipeline.virtual_stages=2"},
        Overrides{"parallel.pipeline.schedule=zero_bubble"}, Overrides{"parallel.pipeline.schedule=zero_bubble_v"}})
    require_equal_to_cpu(with(base, schedule), {{.pp = 2}}, {0, 1});
}

TEST_CASE("data ranks that share a GPU train as one CPU rank does", "[quick][cuda]") {
  require_equal_to_cpu(with(kLlama, kFewer), {{.dp = 2}}, {0, 1, 2});
}

TEST_CASE("in bf16 a GPU differs from the CPU by roundings", "[quick][cuda][bf16]") {
  for (const Overrides& family : {kGpt2, kLlama, kQwen3}) {
    const Overrides model = with(family, kFewer), rounded = with(model, {"precision.compute=bf16"});
    const Run exact = train(with(model, {"device.kind=cpu"}));
    const Run one = train(with(rounded, {"device.kind=cpu"}));
    for (const Sizes& sizes : {Sizes{}, Sizes{.tp = 2}}) {
      INFO(sizes.text());
      require_within_roundings(train_on_gpu(rounded, sizes), one, exact);
    }
  }
}

TEST_CASE("gradients are kept in bf16 on a GPU as on the CPU", "[quick][cuda][bf16]") {
  for (const Overrides& family : {kGpt2, kQwen3}) {
    const Overrides model = with(family, kFewer);
    const Overrides rounded = with(model, {"precision.compute=bf16", "precision.gradients=bf16"});
    const Run exact = train(with(model, {"device.kind=cpu"}));
    const Run one = train(with(rounded, {"device.kind=cpu"}));
    const Run run = train_on_gpu(rounded, {.dp = 2});
    require_within_roundings(run, one, exact);
    for (const auto& [name, values] : run.gradients) {
      INFO(name);
      for (const double value : values)
        REQUIRE(static_cast<double>(static_cast<float>(bfloat16(static_cast<float>(value)))) == value);
    }
  }
}

TEST_CASE("mixtures of experts train on a GPU as on the CPU", "[quick][cuda][moe]") {
  const Overrides mixture = with(with(kLlama, kFewer), {"model.moe={experts: 4, top_k: 2, z_loss_weight: 0.01}"});
  require_equal_to_cpu(mixture, {{}, {.tp = 2}});
  require_equal_to_cpu(with(mixture, {"model.moe.shared_experts=1", "model.moe.capacity_factor=1.0"}), {{}});
  const Overrides rounded = with(mixture, {"precision.compute=bf16", "precision.gradients=bf16"});
  const Run exact = train(with(mixture, {"device.kind=cpu"})), one = train(with(rounded, {"device.kind=cpu"}));
  require_within_roundings(train_on_gpu(rounded), one, exact);
}

TEST_CASE("experts on ranks that share a GPU train as on one CPU rank", "[quick][cuda][moe]") {
  const Overrides mixture = with(kGpt2, {"model.moe={experts: 4, top_k: 2, capacity_factor: 1.25}"});
  const Run reference = train(with(mixture, {"device.kind=cpu"}));
  for (const uint64_t seed : {0, 1}) {
    gpu_emulator::set_seed(seed);
    require_equal_training(train(with(mixture, {"device.kind=cuda", "mesh.ep=2"}), 2), reference, kTolerance);
  }
}

TEST_CASE("context ranks that share a GPU train as one CPU rank does by every method", "[quick][cuda][context]") {
  for (const char* method : {"ring", "all_gather", "ulysses"}) {
    INFO(method);
    const Overrides chosen = with(with(kLlama, kFewer), {std::string("parallel.context.method=") + method});
    require_equal_to_cpu(chosen, {{.cp = 2}}, {0, 1});
    const Overrides rounded = with(chosen, {"precision.compute=bf16"});
    const Run exact = train(with(chosen, {"device.kind=cpu"})), one = train(with(rounded, {"device.kind=cpu"}));
    require_within_roundings(train_on_gpu(rounded, {.cp = 2}), one, exact);
  }
}

TEST_CASE("ranks with a GPU each train over NCCL as one CPU rank does", "[quick][cuda][nccl]") {
  gpu_emulator::set_devices(8);
  const Overrides overrides = with(kGpt2, kFewer);
  const Run reference = train(with(overrides, {"device.kind=cpu"}));
  for (const Sizes& sizes : std::vector<Sizes>{{.dp = 2}, {.tp = 2, .pp = 2}}) {
    INFO(sizes.text());
    require_equal_training(train_on_gpu(overrides, sizes, 1), reference, kTolerance);
  }
  gpu_emulator::set_devices(1);
}

TEST_CASE("ZeRO stages and overlap change no bit on a GPU", "[quick][cuda][bitwise]") {
  const Overrides base = with(kLlama, kFewer);
  const Run plain = train_on_gpu(base, {.dp = 2});
  for (const char* change : {"parallel.zero.stage=0", "parallel.zero.overlap=false"})
    require_same_bits(train_on_gpu(with(base, {change}), {.dp = 2}), plain);
}

// gelu's tanh form aside: a fused product and the activation computed again round differently there.
TEST_CASE("recomputation changes no bit on a GPU", "[quick][cuda][bitwise][recompute]") {
  for (const Overrides& model :
       {with(kGpt2, {"model.dropout=0.1", "model.activation=gelu_exact"}), with(kQwen3, {"precision.compute=bf16"}),
        with(kLlama, {"model.moe.experts=4", "model.moe.capacity_factor=0.9"})}) {
    const Overrides base = with(model, kFewer);
    const Run kept = train_on_gpu(base, {.tp = 2});
    for (const char* recompute : {"parallel.recompute=selective", "parallel.recompute=full"})
      require_same_bits(train_on_gpu(with(base, {recompute}), {.tp = 2}, 3), kept);
  }
}

TEST_CASE("gelu computed again on a GPU trains as on the CPU", "[quick][cuda][recompute]") {
  for (const char* recompute : {"parallel.recompute=selective", "parallel.recompute=full"})
    require_equal_to_cpu(with(with(kGpt2, kFewer), {recompute}), {{}});
}

TEST_CASE("ZeRO 2 and 3 train on ranks that share a GPU as on one CPU rank, in three orders", "[quick][cuda][zero]") {
  for (const char* stage : {"parallel.zero.stage=2", "parallel.zero.stage=3"}) {
    INFO(stage);
    require_equal_to_cpu(with(kGpt2, {stage}), {{.dp = 2}}, {0, 1, 2});  // two microbatches, a table that is lent
    require_equal_to_cpu(with(kLlama, {stage}), {{.dp = 2, .pp = 2}}, {0, 1});
    require_equal_to_cpu(with(with(kLlama, kFewer), {stage, "model.moe={experts: 4, top_k: 2}"}), {{.dp = 2}}, {0, 1});
  }
}

TEST_CASE("ZeRO 2 and 3 and overlap change no bit on a GPU", "[quick][cuda][bitwise][zero]") {
  const Overrides base = with(kGpt2, {"parallel.zero.stage=2"});
  const Run plain = train_on_gpu(base, {.dp = 2});
  require_same_bits(train_on_gpu(with(base, {"parallel.zero.overlap=false"}), {.dp = 2}, 1), plain);
  require_same_bits(train_on_gpu(with(base, {"parallel.zero.stage=3"}), {.dp = 2}, 2), plain);
  require_same_bits(train_on_gpu(with(base, {"parallel.zero.stage=3", "parallel.zero.overlap=false"}), {.dp = 2}, 3),
                    plain);
  const Overrides rounded = with(with(kGpt2, kFewer), {"precision.compute=bf16", "precision.gradients=bf16"});
  const Run whole = train_on_gpu(rounded, {.dp = 2});
  for (const char* stage : {"parallel.zero.stage=2", "parallel.zero.stage=3"})
    require_same_bits(train_on_gpu(with(rounded, {stage}), {.dp = 2}, 1), whole);
}

TEST_CASE("four ranks that share a GPU train as one CPU rank does in three orders", "[quick][cuda]") {
  require_equal_to_cpu(with(kQwen3, kFewer), {{.dp = 2, .tp = 2}, {.tp = 2, .pp = 2}}, {0, 1, 2});
  require_equal_to_cpu(kGpt2, {{.dp = 2, .pp = 2}}, {0, 1, 2});
}

TEST_CASE("ranks on two GPUs that reach each other train as one CPU rank does", "[quick][cuda]") {
  gpu_emulator::set_devices(2);
  require_equal_to_cpu(with(kLlama, kFewer), {{.dp = 2, .tp = 2}}, {0, 1});
  gpu_emulator::set_devices(1);
}

TEST_CASE("gradients are summed, weights gathered and stages' messages moved beside computation, if overlap is not off",
          "[quick][cuda]") {
  const Overrides base = with(kLlama, {"train.steps=1", "train.eval_steps=1"});
  Beside with_overlap = beside_computation(base, {.dp = 2});
  CHECK(with_overlap.sums > 0);
  CHECK(with_overlap.copies > 0);
  Beside without = beside_computation(with(base, {"parallel.zero.overlap=false"}), {.dp = 2});
  CHECK(without.sums == 0);
  CHECK(without.copies == 0);
  CHECK(beside_computation(base, {.pp = 2}).copies > 0);
}

TEST_CASE("units are reduced and gathered beside computation under ZeRO 2 and 3, if overlap is not off",
          "[quick][cuda][zero]") {
  const Overrides once = with(kLlama, {"train.steps=2", "train.eval_steps=1"});
  for (const int64_t stage : {2, 3}) {
    const Overrides base = with(once, {"parallel.zero.stage=" + std::to_string(stage)});
    const Beside with_overlap = beside_computation(base, {.dp = 2});
    CHECK(with_overlap.sums > 0);
    CHECK(with_overlap.copies > 0);
    const Beside without = beside_computation(with(base, {"parallel.zero.overlap=false"}), {.dp = 2});
    CHECK(without.sums == 0);
    CHECK(without.copies == 0);
  }
}

TEST_CASE("every activation, dropout and odd widths train on a GPU as on the CPU", "[full][cuda]") {
  for (const char* activation : {"model.activation=gelu_exact", "model.activation=relu_squared"})
    require_equal_to_cpu(with(kGpt2, {activation}), {{}});
  require_equal_to_cpu(with(kGpt2, {"model.dropout=0.1"}), {{}, {.dp = 2, .tp = 2}});
  require_equal_to_cpu(with(kGpt2, {"model.hidden_size=33", "model.head_dim=6", "model.ffn_hidden_size=36"}),
                       {{}, {.tp = 2}});
  require_equal_to_cpu(with(kGpt2, {"model.vocab_size=259", "model.tie_embeddings=false"}), {{}, {.tp = 2}});
  require_equal_to_cpu(with(kGpt2, {"parallel.sequence_parallel=false", "parallel.pipeline.schedule=gpipe"}),
                       {{.tp = 2, .pp = 2}});
}

TEST_CASE("meshes of several axes that share a GPU train as one CPU rank does in twenty orders", "[full][cuda]") {
  std::vector<uint64_t> seeds(20);
  std::iota(seeds.begin(), seeds.end(), uint64_t{0});
  for (const Overrides& model : {kGpt2, kLlama, kQwen3})
    require_equal_to_cpu(
        model, {{}, {.dp = 2, .tp = 2}, {.tp = 2, .pp = 2}, {.dp = 2, .pp = 2}, {.dp = 2, .tp = 2, .pp = 2}}, seeds);
}

}  // namespace quintet::testing
