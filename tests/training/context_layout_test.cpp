// Ranks that split each sequence: by every method they train as one rank does.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include <fmt/core.h>

#include "tests/support/pairwise.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/training_run.h"

namespace quintet::testing {
namespace {

using Overrides = std::vector<std::string>;

const Overrides kShort = {"train.steps=2", "train.eval_steps=1"};
const Overrides kThin = with(kShort, {"model.hidden_size=32", "model.layers=2"});

const std::vector<Overrides> kMethods = {
    {"parallel.context.method=ring"}, {"parallel.context.method=all_gather"}, {"parallel.context.method=ulysses"}};
const std::vector<Overrides> kBalances = {{"parallel.context.balance=zigzag"}, {"parallel.context.balance=none"}};

std::vector<Overrides> ways() {
  std::vector<Overrides> all;
  for (const Overrides& method : kMethods)
    for (const Overrides& balance : kBalances) all.push_back(with(method, balance));
  return all;
}

// Every method and balance of one model on several meshes.
void require_equal_to_one_rank(const Overrides& overrides, const std::vector<Sizes>& meshes, double tol = 1e-10) {
  References references;
  for (const Sizes& sizes : meshes)
    for (const Overrides& way : ways()) {
      const Overrides all = with(overrides, way);
      INFO(sizes.text() << ", " << way.front() << ", " << way.back());
      require_equal_training(train(all, sizes), references.of(all), tol);
    }
}

}  // namespace

TEST_CASE("context ranks train as one rank does", "[quick][layouts][context][B07]") {
  require_equal_to_one_rank(kThin, {{.cp = 2}, {.cp = 4}, {.dp = 2, .cp = 2}});
  require_equal_to_one_rank(with(kThin, {"precision.compute=fp32"}), {{.cp = 2}, {.dp = 2, .cp = 4}}, 1e-5);
}

TEST_CASE("context ranks beside ranks of every other axis train as one rank does", "[quick][layouts][context]") {
  require_equal_to_one_rank(with(kThin, {"train.micro_batch_size=2"}),
                            {{.tp = 2, .cp = 2}, {.pp = 2, .cp = 2}, {.dp = 2, .tp = 2, .pp = 2, .cp = 2}});
  require_equal_to_one_rank(with(kThin, {"parallel.sequence_parallel=false"}), {{.tp = 2, .cp = 2}});
}

TEST_CASE("context ranks take any number of sequences at a time", "[quick][layouts][context]") {
  for (const int64_t size : {1, 2, 3})
    require_equal_to_one_rank(
        with(kThin, {"train.global_batch_size=6", fmt::format("train.micro_batch_size={}", size)}), {{.cp = 2}});
}

TEST_CASE("context ranks share key heads as one rank does", "[quick][layouts][context]") {
  for (const int64_t key_heads : {1, 2, 4})
    for (const char* qk_norm : {"model.qk_norm=false", "model.qk_norm=true"})
      require_equal_to_one_rank(with(kThin, {fmt::format("model.kv_heads={}", key_heads), "model.heads=8",
                                             "model.position=rope", "model.norm=rmsnorm", qk_norm}),
                                {{.cp = 4}, {.tp = 2, .cp = 2}});
}

TEST_CASE("context ranks know the positions and identities of their tokens", "[quick][layouts][context]") {
  for (const char* position : {"model.position=learned", "model.position=rope", "model.position=none"})
    require_equal_to_one_rank(with(kThin, {position, "model.dropout=0.1"}), {{.cp = 4}, {.tp = 2, .cp = 2}});
}

TEST_CASE("odd numbers of context ranks train as one rank does", "[quick][layouts][context]") {
  require_equal_to_one_rank(with(kThin, {"model.heads=3", "model.hidden_size=24", "model.seq_length=18"}),
                            {{.cp = 3}, {.dp = 2, .cp = 3}});
}

TEST_CASE("context ranks read the same samples, each its part of them", "[quick][layouts][context][B34]") {
  const Run run = train(with(kThin, {"train.micro_batch_size=2"}), {.dp = 2, .cp = 2});
  for (const RankView& view : run.ranks)
    REQUIRE(view.ordinals == (view.coordinate[Axis::dp] == 0 ? std::vector<int64_t>{0, 1, 4, 5, 8, 9, 12, 13}
                                                             : std::vector<int64_t>{2, 3, 6, 7, 10, 11, 14, 15}));
  for (const int64_t counted : run.counted) REQUIRE(counted == 8 * 32);
}

TEST_CASE("schedules, ZeRO stages, overlap, the order of axes and repetition change no bit with context ranks",
          "[quick][layouts][context][bitwise]") {
  const Sizes sizes = {.dp = 2, .tp = 2, .pp = 2, .cp = 2};
  const Overrides base = with(qwen3(), with(kShort, {"precision.compute=fp32", "model.dropout=0.1", "model.layers=2",
                                                     "parallel.zero.bucket_mb=0.05"}));
  for (const Overrides& method : kMethods) {
    INFO(method.front());
    const Run plain = train(with(base, method), sizes);
    require_same_bits(train(with(base, method), sizes), plain);
    for (const char* change : {"parallel.pipeline.schedule=gpipe", "parallel.zero.stage=0",
                               "parallel.zero.overlap=false", "mesh.order=[cp, pp, tp, ep, dp]"}) {
      INFO(change);
      require_same_bits(train(with(with(base, method), {change}), sizes), plain);
    }
  }
}

}  // namespace quintet::testing
