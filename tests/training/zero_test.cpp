// The stages of ZeRO: each trains as one rank does, with the bits and the memory that are promised.
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include <fmt/core.h>

#include "tests/support/training_run.h"

namespace quintet::testing {
namespace {

using Overrides = std::vector<std::string>;

std::string zero_stage(int64_t stage) { return fmt::format("parallel.zero.stage={}", stage); }

const Overrides kMixture = with(gpt2(), {"model.layers=2", "model.hidden_size=32",
                                         "model.moe={experts: 4, top_k: 2, shared_experts: 1, z_loss_weight: 0.01}",
                                         "model.moe.ffn_hidden_size=48"});

// Under every stage given.
void require_equal_to_one_rank(const Overrides& overrides, const std::vector<Sizes>& meshes,
                               const std::vector<int64_t>& stages, double tol = 1e-10) {
  const Run one = train(with(overrides, {zero_stage(0)}));
  for (const Sizes& sizes : meshes)
    for (const int64_t stage : stages) {
      INFO(sizes.text() << ", ZeRO " << stage);
      require_equal_training(train(with(overrides, {zero_stage(stage)}), sizes), one, tol);
    }
}

}  // namespace

TEST_CASE("ZeRO 2 and 3 train as one rank does", "[quick][layouts][zero]") {
  require_equal_to_one_rank(gpt2(), {{}, {.dp = 2}, {.dp = 4, .tp = 2}, {.dp = 2, .pp = 2}}, {2, 3});
  require_equal_to_one_rank(qwen3(), {{.dp = 2, .tp = 2, .pp = 2}, {.dp = 2, .cp = 2}}, {2, 3});
  require_equal_to_one_rank(llama(), {{.pp = 4}, {.tp = 4, .cp = 2}}, {2, 3});
}

TEST_CASE("ZeRO 2 and 3 train experts as one rank does", "[quick][layouts][zero][moe]") {
  require_equal_to_one_rank(kMixture, {{.dp = 2}, {.dp = 2, .ep = 2}, {.pp = 2, .ep = 2}, {.tp = 2, .ep = 2, .cp = 2}},
                            {2, 3});
}

TEST_CASE("groups of 3 and 5 data ranks train under every ZeRO stage as one rank does", "[quick][layouts][zero]") {
  // Norms of 6 elements fall to fewer ranks than there are.
  const Overrides odd = with(qwen3(), {"train.global_batch_size=15", "model.hidden_size=30", "model.head_dim=6",
                                       "model.ffn_hidden_size=36", "model.layers=2", "train.steps=3"});
  require_equal_to_one_rank(odd, {{.dp = 3}, {.dp = 5}, {.dp = 3, .pp = 2}}, {0, 1, 2, 3});
}

TEST_CASE("ZeRO 2 and 3 give the same bits", "[quick][layouts][zero][bitwise]") {
  for (const Overrides& model : {gpt2(), kMixture})
    for (const Sizes& sizes : {Sizes{.dp = 2}, Sizes{.dp = 2, .tp = 2, .pp = 2}}) {
      const Overrides base = with(model, {"precision.compute=fp32", "train.steps=3"});
      require_same_bits(train(with(base, {zero_stage(3)}), sizes), train(with(base, {zero_stage(2)}), sizes));
    }
}

TEST_CASE("where a rank has one microbatch all ZeRO stages give the same bits", "[quick][layouts][zero][bitwise]") {
  for (const char* compute : {"precision.compute=fp32", "precision.compute=bf16"})
    for (const Sizes& sizes : {Sizes{.dp = 4}, Sizes{.dp = 2, .pp = 2}}) {
      const Overrides base = with(qwen3(), {compute, fmt::format("train.micro_batch_size={}", 8 / sizes.dp)});
      const Run plain = train(with(base, {zero_stage(0)}), sizes);
      for (const int64_t stage : {1, 2, 3}) require_same_bits(train(with(base, {zero_stage(stage)}), sizes), plain);
    }
}

TEST_CASE("overlap, bucket sizes, schedules and repeating change no bit under ZeRO 2 and 3",
          "[quick][layouts][zero][bitwise]") {
  const Sizes sizes = {.dp = 2, .pp = 2};
  for (const int64_t stage : {2, 3}) {
    const Overrides base = with(gpt2(), {"precision.compute=fp32", zero_stage(stage), "train.steps=3"});
    const Run plain = train(base, sizes);
    for (const char* change : {"parallel.zero.overlap=false", "parallel.zero.bucket_mb=0.01",
                               "parallel.pipeline.schedule=gpipe", "run.name=again"}) {
      INFO("ZeRO " << stage << ", " << change);
      require_same_bits(train(with(base, {change}), sizes), plain);
    }
  }
}

TEST_CASE("a tied embedding on two stages trains at a high rate as on one rank under every ZeRO stage",
          "[quick][layouts][zero]") {
  const Overrides tied = with(gpt2(), {"optimizer.learning_rate=1.0e-2", "train.steps=10"});
  require_equal_to_one_rank(tied, {{.dp = 2, .pp = 2}}, {1, 2, 3});
}

}  // namespace quintet::testing
