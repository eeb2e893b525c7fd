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

// What must not matter, and what it must not matter for. Choices: dp, tp, pp, cp, then one factor a line.
const std::vector<std::vector<Overrides>> kFactors = {
    {gpt2(), llama(), qwen3()},
    {{"model.dropout=0"}, {"model.dropout=0.1"}},
    {{"precision.compute=fp64"}, {"precision.compute=fp32"}},
    {{}, {"data.end_of_document=46", "data.document_mask=true", "data.mask_end_of_document=true"}},
    {{"parallel.context.method=ring"}, {"parallel.context.method=all_gather"}, {"parallel.context.method=ulysses"}},
    {{"parallel.context.balance=zigzag"}, {"parallel.context.balance=none"}},
    {{"parallel.sequence_parallel=true"}, {"parallel.sequence_parallel=false"}},
    {{"parallel.pipeline.schedule=gpipe"}, {"parallel.pipeline.schedule=1f1b"}},
    {{"parallel.zero.stage=0"}, {"parallel.zero.stage=1"}, {"parallel.zero.stage=2"}, {"parallel.zero.stage=3"}},
    {{"train.micro_batch_size=1"}, {"train.micro_batch_size=2"}},
};
constexpr size_t kAxesChosen = 4, kPrecision = 2;

Sizes sizes_of(const Combination& choice) {
  constexpr std::array<int64_t, 2> kFew = {1, 2};
  constexpr std::array<int64_t, 3> kContext = {1, 2, 4};
  return {.dp = kFew[choice[0]], .tp = kFew[choice[1]], .pp = kFew[choice[2]], .cp = kContext[choice[3]]};
}

// Layouts of up to 16 ranks in which every pair of choices occurs.
std::vector<Combination> covering_layouts(uint64_t seed) {
  std::vector<size_t> choices = {2, 2, 2, 3};
  for (const std::vector<Overrides>& factor : kFactors) choices.push_back(factor.size());
  std::vector<Combination> possible = all_combinations(choices);
  possible.erase(std::remove_if(possible.begin(), possible.end(),
                                [](const Combination& choice) {
                                  const Sizes sizes = sizes_of(choice);
                                  const bool too_few_heads =
                                      choice[kAxesChosen + 4] == 2 && sizes.tp * sizes.cp > 4;  // ulysses
                                  return sizes.ranks() > 16 || too_few_heads;
                                }),
                 possible.end());
  return pairwise_cover(std::move(possible), seed);
}

void require_equal_to_one_rank(References& references, const Combination& choice) {
  Overrides all = kShort;
  for (size_t factor = 0; factor < kFactors.size(); ++factor)
    all = with(all, kFactors[factor][choice[kAxesChosen + factor]]);
  const Sizes sizes = sizes_of(choice);
  INFO(sizes.text());
  for (const std::string& one : all) UNSCOPED_INFO(one);
  require_equal_training(train(all, sizes), references.of(all), choice[kAxesChosen + kPrecision] == 0 ? 1e-10 : 1e-5);
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

TEST_CASE("layouts with context ranks drawn by the commit train as one rank does", "[quick][layouts][context]") {
  constexpr size_t kLayouts = 6;
  std::vector<Combination> layouts = covering_layouts(test_seed());
  layouts.resize(std::min(layouts.size(), kLayouts));
  References references;
  for (const Combination& choice : layouts) require_equal_to_one_rank(references, choice);
}

TEST_CASE("every pair of choices of mesh, context method, model and schedule trains as one rank does",
          "[full][layouts][context]") {
  References references;
  for (const Combination& choice : covering_layouts(test_seed())) require_equal_to_one_rank(references, choice);
}

TEST_CASE("every mesh of up to 16 ranks with context ranks trains as one rank does, by every method",
          "[full][layouts][context]") {
  for (const int64_t dp : {1, 2})
    for (const int64_t tp : {1, 2, 4})
      for (const int64_t pp : {1, 2})
        for (const int64_t cp : {2, 4, 8})
          if (dp * tp * pp * cp <= 16)
            require_equal_to_one_rank(with(kThin, {"model.heads=16", "model.kv_heads=2", "model.seq_length=64"}),
                                      {{.dp = dp, .tp = tp, .pp = pp, .cp = cp}});
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
    require_equal_to_one_rank(
        with(kThin, {fmt::format("model.kv_heads={}", key_heads), "model.heads=8", "model.position=rope",
                     "model.norm=rmsnorm", key_heads == 2 ? "model.qk_norm=false" : "model.qk_norm=true"}),
        {{.cp = 4}, {.tp = 2, .cp = 2}});
}

TEST_CASE("context ranks know the positions and identities of their tokens", "[quick][layouts][context]") {
  for (const char* position : {"model.position=learned", "model.position=rope", "model.position=none"})
    require_equal_to_one_rank(with(kThin, {position, "model.dropout=0.1"}), {{.cp = 4}, {.tp = 2, .cp = 2}});
}

TEST_CASE("many context ranks train as one rank does", "[quick][layouts][context]") {
  require_equal_to_one_rank(with(kThin, {"model.heads=8", "model.kv_heads=4"}), {{.cp = 8}});
  // Messages that keep their sender waiting until they are taken.
  require_equal_to_one_rank(with(kThin, {"model.heads=8", "model.seq_length=64", "train.micro_batch_size=8"}),
                            {{.cp = 8}});
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
