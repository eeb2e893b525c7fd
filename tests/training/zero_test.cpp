// The stages of ZeRO: each trains as one rank does, with the bits and the memory that are promised.
#include <algorithm>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include <fmt/core.h>

#include "tests/support/training_run.h"

namespace quintet::testing {
namespace {

using device::Owner;
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

// A model large enough that what evens out buckets is nothing to it.
const Overrides kWide = with(llama(), {"model.layers=2", "model.hidden_size=192", "model.heads=4", "train.steps=2",
                                       "train.eval_steps=1", "parallel.zero.bucket_mb=1"});

// Bytes that the fullest of `data_ranks` holds for each parameter between uses: weights, gradients, moments, masters.
double bytes_of_parameter(const std::string& compute, int64_t stage, int64_t data_ranks) {
  const Run run = train(with(kWide, {"precision.compute=" + compute, zero_stage(stage)}), Sizes{.dp = data_ranks});
  double parameters = 0, most = 0;
  for (const auto& [name, values] : run.weights) parameters += static_cast<double>(values.size());
  for (const RankView& rank : run.ranks) {
    double bytes = 0;
    for (const Owner owner : {Owner::weights, Owner::gradients, Owner::moments, Owner::master_weights})
      bytes += static_cast<double>(rank.peak_by_owner[owner]);
    most = std::max(most, bytes);
  }
  return most / parameters;
}

}  // namespace

TEST_CASE("each ZeRO stage holds the published bytes a parameter", "[quick][zero][memory]") {
  struct Row {
    const char* compute;
    int64_t stage;
    double whole, shared;  // bytes that every rank holds, and those that the data ranks split
  };
  for (const Row& row : {Row{"fp32", 0, 16, 0}, Row{"fp32", 1, 8, 8}, Row{"fp32", 2, 4, 12}, Row{"fp32", 3, 0, 16},
                         Row{"bf16", 0, 18, 0}, Row{"bf16", 1, 6, 12}, Row{"bf16", 2, 2, 16}, Row{"bf16", 3, 0, 18}}) {
    std::string line = fmt::format("| {} | {} |", row.compute, row.stage);
    for (const int64_t d : {1, 2, 4, 8}) {
      const double bytes = bytes_of_parameter(row.compute, row.stage, d);
      line += fmt::format(" {:.3f} |", bytes);
      INFO(row.compute << ", ZeRO " << row.stage << ", " << d << " data ranks");
      CHECK(bytes == Approx(row.whole + row.shared / static_cast<double>(d)).epsilon(0.01));
    }
    fmt::print("{}\n", line);
  }
}

TEST_CASE("whole units take two buffers a kind, and one for a table that the head borrows", "[quick][zero][memory]") {
  const auto peak = [](const Overrides& overrides, const Sizes& sizes, Owner owner) {
    int64_t most = 0;
    for (const RankView& rank : train(overrides, sizes).ranks) most = std::max(most, rank.peak_by_owner[owner]);
    return most;
  };
  const auto units = [&](const Overrides& overrides, const Sizes& sizes = {.dp = 2}) {
    const Overrides stage3 = with(overrides, {"precision.compute=fp32", zero_stage(3)});
    const int64_t gathered = peak(stage3, sizes, Owner::gathered_units);
    REQUIRE(peak(stage3, sizes, Owner::gradient_units) == gathered);
    return gathered / 4;
  };
  constexpr int64_t H = 64, V = 256, S = 32;
  const Overrides base = with(gpt2(), {"train.steps=1", "train.eval_steps=1"});
  // Blocks of 12 H^2 weights and 13 H of biases and norms, made even; table and positions are lent as one unit.
  constexpr int64_t kBlock = (12 * H * H + 13 * H + 127) / 128 * 128;
  REQUIRE(units(base) == 2 * kBlock + (V + S) * H);
  REQUIRE(units(with(base, {"model.tie_embeddings=false"})) == 2 * kBlock);
  // On two stages the head has a table of its own.
  REQUIRE(units(with(base, {"model.layers=2"}), {.dp = 2, .pp = 2}) == 2 * kBlock);
}

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

TEST_CASE("under every schedule ZeRO 2 and 3 give the same bits, and overlap changes none",
          "[quick][layouts][zero][schedules][bitwise]") {
  const Sizes sizes = {.dp = 2, .pp = 2};
  for (const Overrides& schedule :
       std::vector<Overrides>{{"parallel.pipeline.schedule=zero_bubble"},
                              {"parallel.pipeline.schedule=interleaved", "parallel.pipeline.virtual_stages=2"},
                              {"parallel.pipeline.schedule=zero_bubble_v", "parallel.pipeline.virtual_stages=2"}}) {
    INFO(schedule.front());
    const Overrides base = with(with(gpt2(), {"precision.compute=fp32", "train.steps=3"}), schedule);
    const Run run = train(with(base, {zero_stage(3)}), sizes);
    require_same_bits(train(with(base, {zero_stage(3), "parallel.zero.overlap=false"}), sizes), run);
    require_same_bits(train(with(base, {zero_stage(2)}), sizes), run);
  }
}

TEST_CASE("weight parts gather nothing under ZeRO 3", "[quick][zero][schedules][traffic]") {
  const auto bytes = [](const char* schedule) {
    const Overrides overrides = {zero_stage(3), std::string("parallel.pipeline.schedule=") + schedule, "train.steps=2"};
    return train(with(llama(), overrides), {.dp = 2, .pp = 2}).comm_bytes;
  };
  REQUIRE(bytes("zero_bubble") == bytes("1f1b"));
}

TEST_CASE("a tied embedding on two stages trains at a high rate as on one rank under every ZeRO stage",
          "[quick][layouts][zero]") {
  const Overrides tied = with(gpt2(), {"optimizer.learning_rate=1.0e-2", "train.steps=10"});
  require_equal_to_one_rank(tied, {{.dp = 2, .pp = 2}}, {1, 2, 3});
}

}  // namespace quintet::testing
