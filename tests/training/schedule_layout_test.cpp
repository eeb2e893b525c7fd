// Every pipeline schedule trains as one rank does, whatever the number of microbatches and beside every other axis.
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include <fmt/core.h>

#include "tests/support/training_run.h"

namespace quintet::testing {
namespace {

using Overrides = std::vector<std::string>;

// One or two stages a rank.
const std::vector<Overrides> kOneStage = {{"parallel.pipeline.schedule=gpipe"},
                                          {"parallel.pipeline.schedule=1f1b"},
                                          {"parallel.pipeline.schedule=interleaved"},
                                          {"parallel.pipeline.schedule=zero_bubble"}};
const std::vector<Overrides> kTwoStages = {
    {"parallel.pipeline.schedule=interleaved", "parallel.pipeline.virtual_stages=2"},
    {"parallel.pipeline.schedule=zero_bubble_v"}};

std::vector<Overrides> all_schedules() {
  std::vector<Overrides> all = kOneStage;
  all.insert(all.end(), kTwoStages.begin(), kTwoStages.end());
  return all;
}

const Overrides kThin = {"train.steps=2", "train.eval_steps=1", "model.hidden_size=32", "model.layers=4"};
const Overrides kExperts = {"model.moe={experts: 4, top_k: 2, every: 2, z_loss_weight: 0.01}"};

void require_equal_to_one_rank(const Overrides& model, const std::vector<Overrides>& schedules,
                               const std::vector<Sizes>& meshes, double tol = 1e-10) {
  References references;
  for (const Overrides& schedule : schedules)
    for (const Sizes& sizes : meshes) {
      INFO(sizes.text() << ", " << fmt::format("{}", schedule.front()));
      require_equal_training(train(with(model, schedule), sizes), references.of(model), tol);
    }
}

}  // namespace

TEST_CASE("every schedule trains as one rank does", "[quick][layouts][schedules]") {
  require_equal_to_one_rank(with(gpt2(), kThin), all_schedules(), {{.pp = 2}});
  require_equal_to_one_rank(with(qwen3(), with(kThin, {"model.dropout=0.1"})), all_schedules(), {{.pp = 2}});
  require_equal_to_one_rank(with(llama(), with(kThin, {"precision.compute=fp32"})), all_schedules(), {{.pp = 2}}, 1e-5);
}

TEST_CASE("several stages on one rank hand over without a transfer and train as one stage does",
          "[quick][layouts][schedules]") {
  const Run run = train(with(kThin, {"parallel.pipeline.schedule=interleaved", "parallel.pipeline.virtual_stages=4"}));
  require_equal_training(run, train(kThin), 1e-10);
  require_equal_to_one_rank(kThin, kTwoStages, {{}});
  REQUIRE(run.comm_bytes.front()[Axis::pp] == 0);
}

TEST_CASE("schedules of longer pipelines train as one rank does", "[quick][layouts][schedules]") {
  require_equal_to_one_rank(with(kThin, {"model.layers=9"}), {kOneStage[3]}, {{.pp = 4}});
  require_equal_to_one_rank(with(kThin, {"model.layers=9"}), kTwoStages, {{.pp = 3}, {.pp = 4}});
  require_equal_to_one_rank(with(kThin, {"model.layers=12"}),
                            {{"parallel.pipeline.schedule=interleaved", "parallel.pipeline.virtual_stages=4"}},
                            {{.pp = 3}});
}

TEST_CASE("any number of microbatches trains under every schedule", "[quick][layouts][schedules]") {
  for (const char* batch : {"train.global_batch_size=1", "train.global_batch_size=5", "train.global_batch_size=7"})
    require_equal_to_one_rank(with(kThin, {"model.layers=6", batch}), all_schedules(), {{.pp = 3}});
}

TEST_CASE("schedules train beside data, tensor and context ranks as one rank does", "[quick][layouts][schedules]") {
  const Overrides base = with(qwen3(), kThin);
  for (const Overrides& schedule : {kOneStage[3], kTwoStages[0], kTwoStages[1]}) {
    require_equal_to_one_rank(base, {schedule}, {{.dp = 2, .pp = 2}, {.tp = 2, .pp = 2}});
    require_equal_to_one_rank(base, {schedule}, {{.pp = 2, .cp = 2}});
  }
}

TEST_CASE("schedules train experts as one rank does", "[quick][layouts][schedules][moe]") {
  const Overrides base = with(with(llama(), kThin), kExperts);
  require_equal_to_one_rank(base, {kOneStage[3], kTwoStages[0], kTwoStages[1]}, {{.pp = 2}, {.pp = 2, .ep = 2}});
}

TEST_CASE("every schedule trains with every stage of ZeRO as one rank does", "[quick][layouts][schedules]") {
  for (const char* zero : {"parallel.zero.stage=0", "parallel.zero.stage=2", "parallel.zero.stage=3"})
    for (const Overrides& schedule : {kOneStage[0], kOneStage[3], kTwoStages[0], kTwoStages[1]})
      require_equal_to_one_rank(kThin, {with(schedule, {zero})}, {{.dp = 2, .pp = 2}});
}

TEST_CASE("schedules train on five axes as one rank does", "[full][layouts][schedules]") {
  const Overrides base = with(with(qwen3(), kThin), kExperts);
  for (const char* zero : {"parallel.zero.stage=1", "parallel.zero.stage=3"})
    for (const Overrides& schedule : all_schedules())
      require_equal_to_one_rank(base, {with(schedule, {zero})},
                                {{.dp = 2, .tp = 2, .pp = 2}, {.dp = 1, .tp = 2, .pp = 2, .ep = 2, .cp = 2}});
}

TEST_CASE("gpipe, 1f1b, interleaved and zero_bubble change no bit", "[quick][layouts][schedules][bitwise]") {
  for (const Overrides& model : {with(gpt2(), kThin), with(with(llama(), kThin), kExperts)})
    for (const Sizes& sizes : {Sizes{}, Sizes{.pp = 2}, Sizes{.dp = 2, .pp = 4}}) {
      INFO(sizes.text());
      const Overrides base = with(model, {"precision.compute=fp32", "model.dropout=0.1"});
      const Run plain = train(with(base, kOneStage[0]), sizes);
      for (size_t i = 1; i < kOneStage.size(); ++i) {
        INFO(kOneStage[i].front());
        require_same_bits(train(with(base, kOneStage[i]), sizes), plain);
      }
      if (sizes.pp <= 2) require_same_bits(train(with(base, kTwoStages[0]), sizes), plain);
    }
}

TEST_CASE("under a V the first and the last stage share a tied table, and no sum over the ends is needed",
          "[quick][layouts][schedules]") {
  const Overrides base = with(kThin, {"train.steps=10", "optimizer.learning_rate=1.0e-2", "model.tie_embeddings=true"});
  const Run run = train(with(base, kTwoStages[1]), {.dp = 2, .pp = 2});
  require_equal_training(run, train(base), 1e-10);
  // Transfers only: activations and gradients of 4 microbatches over the two places where ranks meet.
  REQUIRE(run.comm_bytes.front()[Axis::pp] == 2 * 4 * 32 * 32 * 8);
}

TEST_CASE("a rank keeps no more activations than its schedule says", "[quick][memory][schedules]") {
  constexpr int64_t kRanks = 4, kMicrobatches = 8;
  const Overrides base = with(kThin, {"model.layers=8", "train.steps=2"});
  const auto fullest = [&](const Overrides& schedule, size_t rank) {
    const Run run = train(with(base, schedule), {.pp = kRanks});
    return static_cast<double>(run.ranks[rank].peak_by_owner[device::Owner::activations]);
  };
  const double all = fullest(kOneStage[0], 1);  // of a rank without embedding or head
  // Weight parts keep gradients as well as activations.
  REQUIRE(fullest(kOneStage[3], 1) < 2 * all * kRanks / kMicrobatches);
  REQUIRE(fullest(kTwoStages[0], 1) < 1.1 * all * ((2 * (kRanks - 2) + kRanks + 1) / 2.0) / kMicrobatches);
}

}  // namespace quintet::testing
