// Tensor and pipeline ranks beside data ranks: every mesh trains as one rank does.
#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include <fmt/core.h>

#include "tests/support/pairwise.h"
#include "tests/support/training_run.h"

namespace quintet::testing {
namespace {

using Overrides = std::vector<std::string>;

// What must not matter, and what it must not matter for.
struct Layout {
  Sizes sizes;
  Overrides model, parallel;
  double tol;
};

constexpr std::array<int64_t, 3> kSizes = {1, 2, 4};
constexpr int64_t kMostRanks = 16;

// Choices: dp, tp, pp, then one factor a line.
const std::vector<std::vector<Overrides>> kFactors = {
    {gpt2(), llama(), qwen3()},
    {{"model.tie_embeddings=true"}, {"model.tie_embeddings=false"}},
    {{"model.dropout=0"}, {"model.dropout=0.1"}},
    {{"precision.compute=fp64"}, {"precision.compute=fp32", "train.steps=3"}},
    {{"parallel.zero.stage=0"}, {"parallel.zero.stage=1"}, {"parallel.zero.stage=2"}, {"parallel.zero.stage=3"}},
    {{"parallel.sequence_parallel=true"}, {"parallel.sequence_parallel=false"}},
    {{"parallel.pipeline.schedule=gpipe"},
     {"parallel.pipeline.schedule=1f1b"},
     {"parallel.pipeline.schedule=zero_bubble"},
     {"parallel.pipeline.schedule=interleaved", "parallel.pipeline.virtual_stages=2"},
     {"parallel.pipeline.schedule=zero_bubble_v"}},
    {{"parallel.zero.overlap=true"}, {"parallel.zero.overlap=false"}},
    {{"train.micro_batch_size=1"}, {"train.micro_batch_size=2"}},
};
constexpr size_t kModelFactors = 4;  // the first ones
constexpr size_t kPrecision = 3, kSchedule = 6;
constexpr size_t kFirstOfTwoStages = 3;  // schedules from here on have two stages a rank

Sizes sizes_of(const Combination& choice) { return {kSizes[choice[0]], kSizes[choice[1]], kSizes[choice[2]]}; }

Layout layout_of(const Combination& choice) {
  Layout layout{.sizes = sizes_of(choice), .model = {}, .parallel = {"parallel.zero.bucket_mb=0.05"}, .tol = 1e-10};
  for (size_t factor = 0; factor < kFactors.size(); ++factor) {
    Overrides& part = factor < kModelFactors ? layout.model : layout.parallel;
    part = with(part, kFactors[factor][choice[3 + factor]]);
  }
  if (choice[3 + kPrecision] == 1) layout.tol = 1e-5;
  return layout;
}

// Layouts in which every pair of choices occurs.
std::vector<Combination> covering_layouts(uint64_t seed) {
  std::vector<size_t> choices(3, kSizes.size());
  for (const std::vector<Overrides>& factor : kFactors) choices.push_back(factor.size());
  std::vector<Combination> possible = all_combinations(choices);
  possible.erase(std::remove_if(possible.begin(), possible.end(),
                                [](const Combination& choice) {
                                  const Sizes sizes = sizes_of(choice);
                                  const bool two_stages = choice[3 + kSchedule] >= kFirstOfTwoStages;
                                  return sizes.ranks() > kMostRanks || (two_stages && sizes.pp > 2);  // of 4 layers
                                }),
                 possible.end());
  return pairwise_cover(std::move(possible), seed);
}

void require_equal_to_one_rank(References& references, const Layout& layout) {
  INFO(layout.sizes.text());
  const Overrides all = with(layout.model, layout.parallel);
  for (const std::string& one : all) UNSCOPED_INFO(one);
  require_equal_training(train(all, layout.sizes), references.of(all), layout.tol);
}

// One model on several meshes, in fp64.
void require_equal_to_one_rank(const Overrides& overrides, const std::vector<Sizes>& meshes) {
  References references;
  for (const Sizes& sizes : meshes)
    require_equal_to_one_rank(references, {.sizes = sizes, .model = overrides, .parallel = {}, .tol = 1e-10});
}

const Overrides kShort = {"train.steps=2", "train.eval_steps=1"};
const Overrides kThin = with(kShort, {"model.hidden_size=32", "model.layers=2"});

}  // namespace

TEST_CASE("layouts drawn by the commit train as one rank does", "[quick][layouts]") {
  constexpr size_t kLayouts = 8;
  std::vector<Combination> layouts = covering_layouts(test_seed());
  layouts.resize(std::min(layouts.size(), kLayouts));
  References references;
  for (const Combination& choice : layouts) require_equal_to_one_rank(references, layout_of(choice));
}

TEST_CASE("every pair of choices of mesh, model, ZeRO and schedule trains as one rank does", "[full][layouts]") {
  References references;
  for (const Combination& choice : covering_layouts(test_seed()))
    require_equal_to_one_rank(references, layout_of(choice));
}

TEST_CASE("every mesh of up to 16 ranks trains as one rank does", "[full][layouts]") {
  std::vector<Sizes> meshes;
  for (const Combination& choice : all_combinations({3, 3, 3}))
    if (sizes_of(choice).ranks() <= kMostRanks) meshes.push_back(sizes_of(choice));
  require_equal_to_one_rank(gpt2(), meshes);
}

TEST_CASE("three ranks along an axis train as one does", "[quick][layouts]") {
  const Overrides base = with(kShort, {"model.hidden_size=48", "model.heads=6", "model.kv_heads=3",
                                       "model.seq_length=24", "train.global_batch_size=6"});
  require_equal_to_one_rank(base, {{.tp = 3}, {.pp = 3}, {.dp = 3, .tp = 3}, {.dp = 3, .pp = 2}});
}

TEST_CASE("more tensor ranks than key heads share them and train as one rank does", "[quick][layouts]") {
  for (const char* kv_heads : {"model.kv_heads=1", "model.kv_heads=2"})
    for (const char* qk_norm : {"model.qk_norm=false", "model.qk_norm=true"})
      for (const char* qkv_bias : {"model.qkv_bias=false", "model.qkv_bias=true"}) {
        INFO(kv_heads << ", " << qk_norm << ", " << qkv_bias);
        require_equal_to_one_rank(
            with(kThin, {"model.norm=rmsnorm", "model.position=rope", kv_heads, qk_norm, qkv_bias, "model.bias=false"}),
            {{.dp = 2, .tp = 4}});
      }
  require_equal_to_one_rank(with(kThin, {"model.kv_heads=2", "model.qk_norm=true", "parallel.sequence_parallel=false",
                                         "parallel.zero.stage=0"}),
                            {{.dp = 2, .tp = 4}});
}

TEST_CASE("stages of unequal depth train as one rank does", "[quick][layouts]") {
  require_equal_to_one_rank(with(kShort, {"parallel.pipeline.layers_per_stage=[1, 3]"}), {{.pp = 2}});
  require_equal_to_one_rank(with(kShort, {"parallel.pipeline.layers_per_stage=[2, 1, 1]"}), {{.tp = 2, .pp = 3}});
  require_equal_to_one_rank(with(kThin, {"model.layers=5"}), {{.pp = 2}, {.pp = 3}, {.pp = 4}});
}

TEST_CASE("stages without a layer train as one rank does", "[quick][layouts]") {
  const auto split = [](const char* layers) {
    return Overrides{fmt::format("parallel.pipeline.layers_per_stage=[{}]", layers)};
  };
  const auto schedule = [](const char* name, int64_t stages_of_rank = 1) {
    return Overrides{fmt::format("parallel.pipeline.schedule={}", name),
                     fmt::format("parallel.pipeline.virtual_stages={}", stages_of_rank)};
  };
  const auto zero = [](int64_t stage) { return Overrides{fmt::format("parallel.zero.stage={}", stage)}; };
  const Overrides tied = with(kThin, {"model.layers=4", "model.dropout=0.1", "train.micro_batch_size=1"});
  const Overrides experts =
      with(tied, {"model.tie_embeddings=false", "model.moe={experts: 4, top_k: 2}", "model.init_std=0.1"});
  const Sizes two = {.dp = 2, .pp = 2};
  for (const Overrides& model : {tied, experts}) {
    require_equal_to_one_rank(with(model, split("4, 0")), {{.pp = 2}, {.tp = 2, .pp = 2}});
    require_equal_to_one_rank(with(with(model, split("0, 4")), zero(2)), {two});
    require_equal_to_one_rank(with(with(model, split("0, 4, 0")), with(zero(3), {"parallel.recompute=full"})),
                              {{.dp = 2, .pp = 3}});
    require_equal_to_one_rank(with(with(model, split("0, 4")), with(schedule("gpipe"), {"parallel.recompute=full"})),
                              {{.pp = 2}});
    require_equal_to_one_rank(with(with(model, split("4, 0")), with(schedule("zero_bubble"), zero(3))), {two});
    require_equal_to_one_rank(with(with(model, split("0, 2, 2, 0")), with(schedule("interleaved", 2), zero(3))), {two});
    require_equal_to_one_rank(with(with(model, split("0, 2, 2, 0")), with(schedule("zero_bubble_v"), zero(2))), {two});
  }
}

TEST_CASE("each stage holds as many layers as it is told", "[quick][layouts]") {
  const auto weights = [](const char* split, size_t stage) {
    const std::string layers = fmt::format("parallel.pipeline.layers_per_stage=[{}]", split);
    const Run run = train(with(kThin, {"model.layers=4", "train.steps=1", layers}), {.pp = 2});
    return static_cast<double>(run.ranks[stage].peak_by_owner[device::Owner::weights]);
  };
  const double layer = weights("2, 2", 0) - weights("1, 3", 0);
  REQUIRE(layer > 0);
  for (const size_t stage : {0, 1}) {
    const double more = weights("3, 1", stage) - weights("1, 3", stage);
    REQUIRE(more == Approx(stage == 0 ? 2 * layer : -2 * layer).epsilon(0.01));  // but for the buckets' padding
  }
}

TEST_CASE("6 layers on 4 stages are all trained", "[quick][layouts]") {
  const Overrides base = with(kThin, {"model.layers=6"});
  const Run run = train(base, {.pp = 4});
  require_equal_training(run, train(base), 1e-10);
  for (int layer = 0; layer < 6; ++layer) {
    const std::string name = fmt::format("layers.{}.mlp.up.weight", layer);
    REQUIRE(run.weights.at(name) != run.initial_weights.at(name));
  }
}

TEST_CASE("fewer microbatches than stages train as one rank does", "[quick][layouts]") {
  for (const char* schedule : {"parallel.pipeline.schedule=gpipe", "parallel.pipeline.schedule=1f1b"})
    for (const char* size : {"train.micro_batch_size=8", "train.micro_batch_size=4"})
      require_equal_to_one_rank(with(kThin, {"model.layers=4", schedule, size}), {{.pp = 4}});
}

TEST_CASE("a vocabulary that tensor ranks cannot share evenly trains as one rank does", "[quick][layouts]") {
  for (const char* vocabulary : {"model.vocab_size=257", "model.vocab_size=259"})
    for (const char* tied : {"model.tie_embeddings=true", "model.tie_embeddings=false"})
      require_equal_to_one_rank(with(kThin, {vocabulary, tied}), {{.tp = 2}, {.tp = 4}, {.dp = 2, .tp = 2, .pp = 2}});
}

TEST_CASE("odd widths train as one rank does", "[quick][layouts]") {
  const Overrides odd_hidden = {"model.hidden_size=33", "model.head_dim=7", "model.ffn_hidden_size=36"};
  require_equal_to_one_rank(with(kThin, odd_hidden), {{.tp = 2}, {.tp = 4}, {.dp = 2, .tp = 2, .pp = 2}});
  require_equal_to_one_rank(with(kThin, {"model.ffn_hidden_size=77"}), {{.dp = 2, .pp = 2}});
  require_equal_to_one_rank(with(kThin, {"model.ffn_hidden_size=12", "model.activation=swiglu"}), {{.tp = 4}});
  require_equal_to_one_rank(with(kThin, {"model.seq_length=12"}), {{.dp = 2, .tp = 4}});
}

TEST_CASE("a tied embedding stays one tensor on the first and the last stage", "[quick][layouts]") {
  const Overrides base = with(kThin, {"train.steps=10", "optimizer.learning_rate=1.0e-2"});
  const Run run = train(base, {.dp = 2, .pp = 2});  // require_equal_training looks at every copy's bits
  require_equal_training(run, train(base), 1e-10);
  REQUIRE(run.weights.at("embedding.weight") != run.initial_weights.at("embedding.weight"));
  require_equal_to_one_rank(base, {{.dp = 2, .tp = 2, .pp = 2}});
}

TEST_CASE("microbatches and stages do not change the gradient", "[quick][layouts]") {
  const Overrides base = with(kThin, {"model.layers=4"});
  const Run whole = train(with(base, {"train.micro_batch_size=8"}));
  for (const char* size : {"train.micro_batch_size=8", "train.micro_batch_size=2", "train.micro_batch_size=1"})
    for (const int64_t stages : kSizes) require_equal_training(train(with(base, {size}), {.pp = stages}), whole, 1e-10);
}

TEST_CASE("the gradient's norm and its clipping do not depend on tensor ranks", "[quick][layouts]") {
  // Such an epsilon lets Adam see the gradient's scale.
  for (const char* clip : {"optimizer.clip_grad_norm=0", "optimizer.clip_grad_norm=0.01"})
    for (const Overrides& model : {gpt2(), qwen3()}) {
      const Overrides base = with(model, with(kThin, {"optimizer.epsilon=1.0", clip}));
      require_equal_to_one_rank(base, {{.tp = 2}, {.tp = 4}});
      require_equal_to_one_rank(with(base, {"parallel.sequence_parallel=false"}), {{.tp = 4}});
    }
}

TEST_CASE("padding of the vocabulary adds nothing to a uniform guess", "[quick][layouts]") {
  for (const int64_t vocabulary : {257, 259})
    for (const int64_t tensor_ranks : kSizes) {
      const Run run =
          train(with(kThin, {"model.init_std=0", "train.steps=1", fmt::format("model.vocab_size={}", vocabulary)}),
                {.tp = tensor_ranks});
      REQUIRE(run.losses.front() == Approx(std::log(static_cast<double>(vocabulary))).epsilon(1e-14));
    }
}

TEST_CASE("data ranks read different samples, tensor and pipeline ranks the same ones", "[quick][layouts]") {
  const Sizes sizes = {.dp = 2, .tp = 2, .pp = 2};
  for (const char* order : {"mesh.order=[tp, cp, ep, dp, pp]", "mesh.order=[pp, dp, ep, cp, tp]"}) {
    const Run run = train(with(kThin, {order, "train.micro_batch_size=2"}), sizes);
    std::array<std::vector<int64_t>, 2> of_data_rank;
    for (const RankView& view : run.ranks) {
      std::vector<int64_t>& expected = of_data_rank[static_cast<size_t>(view.coordinate[Axis::dp])];
      if (expected.empty()) expected = view.ordinals;
      REQUIRE(view.ordinals == expected);
    }
    // Two steps of two microbatches of two samples.
    REQUIRE(of_data_rank[0] == std::vector<int64_t>{0, 1, 4, 5, 8, 9, 12, 13});
    REQUIRE(of_data_rank[1] == std::vector<int64_t>{2, 3, 6, 7, 10, 11, 14, 15});
  }
}

TEST_CASE("tokens counted do not depend on tensor and pipeline ranks", "[quick][layouts]") {
  for (const Sizes& sizes : {Sizes{}, Sizes{.tp = 4}, Sizes{.pp = 2}, Sizes{.dp = 2, .tp = 2, .pp = 2}})
    for (const int64_t counted : train(kThin, sizes).counted) REQUIRE(counted == 8 * 32);
}

TEST_CASE("initial weights are the same bits on every mesh, a padded vocabulary's too", "[quick][layouts][bitwise]") {
  const Overrides base = with(kThin, {"train.steps=1", "model.vocab_size=259", "model.kv_heads=2"});
  const Run one = train(base);
  for (const Sizes& sizes : {Sizes{.tp = 2}, Sizes{.tp = 4}, Sizes{.pp = 2}, Sizes{.dp = 2, .tp = 2, .pp = 2}})
    REQUIRE(train(base, sizes).initial_weights == one.initial_weights);
}

TEST_CASE("schedules, ZeRO stages, overlap and repetition change no bit on a mesh of three axes",
          "[quick][layouts][bitwise]") {
  const Sizes sizes = {.dp = 2, .tp = 2, .pp = 2};
  const Overrides base = with(qwen3(), with(kShort, {"precision.compute=fp32", "model.dropout=0.1", "model.layers=2",
                                                     "parallel.zero.bucket_mb=0.05"}));
  const Run plain = train(base, sizes);
  require_same_bits(train(base, sizes), plain);
  for (const char* change : {"parallel.pipeline.schedule=gpipe", "parallel.zero.stage=0", "parallel.zero.overlap=false",
                             "parallel.zero.bucket_mb=0.01"}) {
    INFO(change);
    require_same_bits(train(with(base, {change}), sizes), plain);
  }
}

TEST_CASE("ZeRO stages give the same bits where tensor ranks share key heads", "[quick][layouts][bitwise]") {
  const Overrides base = with(kThin, {"precision.compute=fp32", "model.kv_heads=2", "model.qk_norm=true"});
  const Sizes sizes = {.dp = 2, .tp = 4};
  require_same_bits(train(with(base, {"parallel.zero.stage=0"}), sizes),
                    train(with(base, {"parallel.zero.stage=1"}), sizes));
}

TEST_CASE("the order of the axes changes no bit of a mesh of three", "[quick][layouts][bitwise]") {
  const Sizes sizes = {.dp = 2, .tp = 2, .pp = 2};
  const Run plain = train(kThin, sizes);
  require_equal_training(plain, train(kThin), 1e-10);
  for (const char* order : {"mesh.order=[pp, cp, ep, dp, tp]", "mesh.order=[dp, pp, ep, cp, tp]"})
    require_same_bits(train(with(kThin, {order}), sizes), plain);
}

}  // namespace quintet::testing
