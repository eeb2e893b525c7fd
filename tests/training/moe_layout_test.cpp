// Mixtures of experts: ranks along ep that hold the experts, beside every other axis, train as one rank does.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "lib/base/random.h"
#include "tests/support/pairwise.h"
#include "tests/support/training_run.h"

namespace quintet::testing {
namespace {

using Overrides = std::vector<std::string>;

// 8 sequences of 16, four layers of 32 whose routers tell experts well apart.
const Overrides kSmall = {"model.hidden_size=32", "model.seq_length=16",         "model.ffn_hidden_size=48",
                          "model.init_std=0.1",   "model.moe.experts=8",         "train.eval_steps=1",
                          "model.moe.top_k=2",    "parallel.zero.bucket_mb=0.02"};
const Overrides kTwoLayers = with(kSmall, {"model.layers=2", "train.steps=3"});

// Experts with biases; Mixtral's shape; many query heads on one key head.
const Overrides kGeluShape = {"model.activation=gelu"};
const Overrides kMixtralShape = {"model.norm=rmsnorm", "model.activation=swiglu", "model.position=rope",
                                 "model.bias=false",   "model.kv_heads=2",        "model.tie_embeddings=false"};
const Overrides kReluShape = {"model.activation=relu_squared", "model.position=rope", "model.kv_heads=1",
                              "model.qk_norm=true"};

constexpr int64_t kMostRanks = 16, kSequences = 8;
const std::vector<std::vector<int64_t>> kAxisSizes = {{1, 2}, {1, 2, 4}, {1, 2, 3}, {1, 2, 4, 8}};  // dp, tp, pp, ep
const std::vector<std::vector<Overrides>> kFactors = {
    // of the model
    {kGeluShape, kMixtralShape, kReluShape},
    {{"model.moe.top_k=1"}, {"model.moe.top_k=2"}, {"model.moe.experts=12", "model.moe.top_k=3"}},
    {{"model.moe.routing=learned"}, {"model.moe.routing=round_robin"}},
    {{"model.moe.shared_experts=0"}, {"model.moe.shared_experts=2"}},
    {{"model.moe.aux_loss_weight=0.3", "model.moe.z_loss_weight=0.02"},
     {"model.moe.balance=bias", "model.moe.bias_update_rate=0.02"},
     {"model.moe.balance=none"}},
    {{"model.moe.capacity_factor=null"}, {"model.moe.capacity_factor=1.0"}, {"model.moe.capacity_factor=0.4"}},
    {{"model.moe.every=1"}, {"model.moe.every=2"}},
    {{"model.moe.normalize_top_k=true"}, {"model.moe.normalize_top_k=false"}},
    {{"model.moe.ffn_hidden_size=48"}, {"model.moe.ffn_hidden_size=20"}},
    {{"model.dropout=0"}, {"model.dropout=0.1"}},
    // Adam's first steps are the signs of gradients: with a usual epsilon a rounding of a gradient near zero is a step.
    {{"precision.compute=fp64"}, {"precision.compute=fp32", "train.steps=3", "optimizer.epsilon=1.0e-5"}},
    // of the run
    {{"parallel.sequence_parallel=true"}, {"parallel.sequence_parallel=false"}},
    {{"parallel.zero.stage=0"}, {"parallel.zero.stage=1"}, {"parallel.zero.stage=2"}, {"parallel.zero.stage=3"}},
    {{"parallel.zero.overlap=true"}, {"parallel.zero.overlap=false"}},
    {{"parallel.pipeline.schedule=gpipe"}, {"parallel.pipeline.schedule=1f1b"}},
    {{"train.micro_batch_size=1"}, {"train.micro_batch_size=2"}},
    {{"mesh.order=[tp, cp, ep, dp, pp]"}, {"mesh.order=[ep, pp, dp, cp, tp]"}},
    {{}, {"parallel.pipeline.layers_per_stage=uneven"}},
};
constexpr size_t kMeshAxes = 4, kExperts = 1, kPrecision = 10, kMicroBatch = 15, kSplit = 17;

Sizes sizes_of(const Combination& choice) {
  return {.dp = kAxisSizes[0][choice[0]],
          .tp = kAxisSizes[1][choice[1]],
          .pp = kAxisSizes[2][choice[2]],
          .ep = kAxisSizes[3][choice[3]]};
}

bool is_legal(const Combination& choice) {
  const Sizes sizes = sizes_of(choice);
  const int64_t experts = choice[kMeshAxes + kExperts] == 2 ? 12 : 8;
  const auto micro_batch = static_cast<int64_t>(1 + choice[kMeshAxes + kMicroBatch]);
  return sizes.ranks() <= kMostRanks && experts % sizes.ep == 0 &&
         kSequences % (micro_batch * sizes.dp * sizes.ep) == 0;
}

// Legal layouts out of `draws`, so few that not every pair of choices need be among them.
std::vector<Combination> drawn_layouts(uint64_t seed, uint64_t draws) {
  std::vector<size_t> choices;
  for (const std::vector<int64_t>& sizes : kAxisSizes) choices.push_back(sizes.size());
  for (const std::vector<Overrides>& factor : kFactors) choices.push_back(factor.size());
  std::vector<Combination> layouts;
  for (uint64_t draw = 0; draw < draws; ++draw) {
    Combination layout;
    for (size_t i = 0; i < choices.size(); ++i) layout.push_back(philox(seed, draw, i)[0] % choices[i]);
    if (is_legal(layout)) layouts.push_back(std::move(layout));
  }
  return layouts;
}

// Returns the steps in which routers did the same, which in fp64 are all.
size_t require_equal_to_one_rank(References& references, const Sizes& sizes, const Overrides& overrides,
                                 double tol = 1e-10) {
  INFO(fmt::format("{}; '{}'", sizes.text(), fmt::join(overrides, "' '")));
  const Run run = train(overrides, sizes);
  require_equal_training(run, references.of(overrides), tol);
  return steps_routed_alike(run, references.of(overrides));
}

void require_equal_to_one_rank(const Overrides& overrides, const std::vector<Sizes>& meshes) {
  References references;
  for (const Sizes& sizes : meshes) require_equal_to_one_rank(references, sizes, overrides);
}

size_t require_equal_to_one_rank(References& references, const Combination& choice) {
  const Sizes sizes = sizes_of(choice);
  Overrides overrides = kSmall;
  for (size_t factor = 0; factor < kFactors.size(); ++factor)
    if (factor != kSplit) overrides = with(overrides, kFactors[factor][choice[kMeshAxes + factor]]);
  if (choice[kMeshAxes + kSplit] == 1 && sizes.pp > 1)
    overrides.push_back(fmt::format("parallel.pipeline.layers_per_stage={}", sizes.pp == 2 ? "[1, 3]" : "[2, 1, 1]"));
  return require_equal_to_one_rank(references, sizes, overrides, choice[kMeshAxes + kPrecision] == 0 ? 1e-10 : 1e-5);
}

// A near-tie in fp32 may send a token elsewhere, but seldom does.
void require_equal_to_one_rank(const std::vector<Combination>& layouts) {
  References references;
  size_t alike = 0, steps = 0;
  for (const Combination& choice : layouts) {
    alike += require_equal_to_one_rank(references, choice);
    steps += choice[kMeshAxes + kPrecision] == 0 ? 5 : 3;
  }
  INFO(alike << " of " << steps << " steps");
  REQUIRE(10 * alike >= 9 * steps);
}

std::vector<double> balance_bias(const Run& run, int layer) {
  return run.weights.at(fmt::format("layers.{}.moe.router.balance_bias", layer));
}

int64_t total(const std::vector<int64_t>& loads) { return std::accumulate(loads.begin(), loads.end(), int64_t{0}); }

}  // namespace

TEST_CASE("layouts of experts drawn by the commit train as one rank does", "[quick][layouts][moe]") {
  constexpr size_t kLayouts = 10;
  std::vector<Combination> layouts = pairwise_cover(drawn_layouts(test_seed(), 1500), test_seed());
  layouts.resize(std::min(layouts.size(), kLayouts));
  require_equal_to_one_rank(layouts);
}

TEST_CASE("pairs of choices of mesh, experts, balance and schedule train as one rank does", "[full][layouts][moe]") {
  require_equal_to_one_rank(pairwise_cover(drawn_layouts(test_seed(), 20000), test_seed()));
}

TEST_CASE("every mesh of up to 16 ranks with experts trains as one rank does", "[full][layouts][moe]") {
  std::vector<Sizes> meshes;
  for (const Combination& choice : all_combinations({2, 3, 3, 4}))
    if (sizes_of(choice).ranks() <= kMostRanks && kSequences % (sizes_of(choice).dp * sizes_of(choice).ep) == 0)
      meshes.push_back(sizes_of(choice));
  require_equal_to_one_rank(with(kSmall, {"model.moe.z_loss_weight=0.02"}), meshes);
  require_equal_to_one_rank(with(kSmall, with(kMixtralShape, {"model.moe.every=2", "model.moe.balance=bias"})), meshes);
}

TEST_CASE("2, 4 and 8 ranks along ep train as one rank does", "[quick][layouts][moe][B04]") {
  // Such an epsilon lets Adam see the gradient's scale.
  const Overrides base = with(kTwoLayers, {"model.moe.z_loss_weight=0.02", "optimizer.epsilon=1.0"});
  require_equal_to_one_rank(base, {{.ep = 2}, {.ep = 4}, {.ep = 8}, {.dp = 2, .ep = 2}, {.dp = 2, .ep = 4}});
  require_equal_to_one_rank(with(base, {"parallel.zero.stage=0"}), {{.ep = 4}, {.dp = 2, .ep = 2}});
}

TEST_CASE("experts' weights after Adam steps agree between layouts", "[quick][layouts][moe][B04]") {
  const Overrides base = with(kTwoLayers, kMixtralShape);  // no biases, whose gradients may be zero but for rounding
  const Run one = train(base);
  for (const Sizes& sizes : {Sizes{.ep = 4}, Sizes{.tp = 2, .ep = 2}, Sizes{.dp = 2, .pp = 2, .ep = 2}}) {
    const Run run = train(base, sizes);
    for (const auto& [name, expected] : one.weights) {
      INFO(name << " on " << sizes.text());
      double largest = 0, worst = 0;
      for (size_t i = 0; i < expected.size(); ++i) {
        largest = std::max(largest, std::abs(expected[i]));
        worst = std::max(worst, std::abs(run.weights.at(name)[i] - expected[i]));
      }
      REQUIRE(worst <= 1e-8 * largest);
      REQUIRE(run.weights.at(name) != run.initial_weights.at(name));
    }
  }
}

TEST_CASE("without experts ranks along ep are data ranks", "[quick][layouts][moe]") {
  const Overrides dense = {"model.layers=2", "model.hidden_size=32", "train.steps=2", "parallel.zero.bucket_mb=0.02"};
  require_equal_to_one_rank(dense, {{.ep = 4}, {.dp = 2, .tp = 2, .ep = 2}, {.pp = 2, .ep = 2}});
  require_same_bits(train(dense, {.ep = 4}), train(dense, {.dp = 4}));
}

TEST_CASE("experts split over tensor ranks train as one rank does", "[quick][layouts][moe]") {
  for (const char* splits : {"parallel.sequence_parallel=true", "parallel.sequence_parallel=false"})
    for (const Overrides& shape : {kGeluShape, kMixtralShape})
      require_equal_to_one_rank(with(with(kTwoLayers, shape), {splits, "model.moe.shared_experts=1"}),
                                {{.tp = 4}, {.tp = 2, .ep = 2}, {.dp = 2, .tp = 2, .ep = 2}});
}

TEST_CASE("stages with and without experts train as one rank does", "[quick][layouts][moe]") {
  const Overrides base = with(kSmall, {"model.moe.every=2", "train.steps=2"});
  require_equal_to_one_rank(base, {{.pp = 2}, {.pp = 4}, {.pp = 2, .ep = 2}});
  require_equal_to_one_rank(with(base, {"parallel.pipeline.layers_per_stage=[1, 3]"}), {{.pp = 2, .ep = 2}});
  require_equal_to_one_rank(with(base, {"parallel.pipeline.schedule=gpipe", "model.moe.every=3"}),
                            {{.pp = 3, .ep = 2}});  // one MoE layer, on one stage of three
}

TEST_CASE("all axes at once train as one rank does", "[quick][layouts][moe]") {
  for (const Overrides& more : {Overrides{"model.moe.capacity_factor=0.5", "model.dropout=0.1"},
                                Overrides{"model.moe.balance=bias", "parallel.zero.stage=0"}})
    require_equal_to_one_rank(with(kTwoLayers, more), {{.dp = 2, .tp = 2, .pp = 2, .ep = 2}});
}

TEST_CASE("three ranks along ep train as one does", "[quick][layouts][moe]") {
  const Overrides base = with(kTwoLayers, {"model.moe.experts=9", "train.global_batch_size=6", "model.seq_length=12",
                                           "model.hidden_size=24", "model.heads=3", "model.moe.ffn_hidden_size=15"});
  require_equal_to_one_rank(base, {{.ep = 3}, {.tp = 3, .ep = 3}, {.dp = 2, .ep = 3}});
}

TEST_CASE("experts and ranks without a token do not stop the others", "[quick][layouts][moe][B23]") {
  // Two positions for eight experts: round robin leaves six without a token, and with them three ranks of four.
  const Overrides base = with(kTwoLayers, {"model.seq_length=2", "model.moe.top_k=1", "train.global_batch_size=4",
                                           "train.steps=20", "optimizer.weight_decay=0"});
  for (const char* routing : {"model.moe.routing=round_robin", "model.moe.routing=learned"}) {
    const Overrides routed = with(base, {routing});
    References references;
    for (const Sizes& sizes : {Sizes{.ep = 4}, Sizes{.tp = 2, .ep = 4}}) {
      const Run run = train(routed, sizes);
      require_equal_training(run, references.of(routed), 1e-10);
      for (int layer = 0; layer < 2; ++layer)
        for (int expert = 0; expert < 8; ++expert) {
          const bool is_idle = std::all_of(run.routing.begin(), run.routing.end(), [&](const StepRouting& step) {
            return step.loads[static_cast<size_t>(layer * 8 + expert)] == 0;
          });
          if (std::string(routing) == "model.moe.routing=round_robin") REQUIRE(is_idle == (expert >= 2));
          if (!is_idle) continue;
          for (const char* part : {"up.weight", "up.bias", "down.weight", "down.bias"}) {
            const std::string name = fmt::format("layers.{}.moe.experts.{}.{}", layer, expert, part);
            REQUIRE(run.weights.at(name) == run.initial_weights.at(name));
          }
        }
    }
  }
}

TEST_CASE("the balance loss weighs the same however the batch is cut", "[quick][layouts][moe][B08]") {
  const Overrides base = with(kTwoLayers, {"model.moe.aux_loss_weight=1.0", "model.moe.z_loss_weight=0.1"});
  const Run whole = train(with(base, {"train.micro_batch_size=8"}));
  for (const char* size : {"train.micro_batch_size=1", "train.micro_batch_size=4"})
    require_equal_training(train(with(base, {size})), whole, 1e-10);
  require_equal_training(train(base, {.dp = 2, .pp = 2, .ep = 2}), whole, 1e-10);

  const std::string router = "layers.1.moe.router.weight";
  for (const char* weight : {"model.moe.aux_loss_weight=0", "model.moe.z_loss_weight=0"}) {
    const Run without = train(with(base, {weight, "train.micro_batch_size=8", "train.steps=1"}));
    REQUIRE(without.losses.front() == whole.losses.front());
    REQUIRE(without.gradients.at(router) != whole.gradients.at(router));
  }
}

TEST_CASE("routers that cannot tell experts apart choose the first and lose what a uniform guess does",
          "[quick][moe]") {
  for (const Sizes& sizes : {Sizes{}, Sizes{.tp = 2, .ep = 2}}) {
    const Run run = train(with(kTwoLayers, {"model.init_std=0", "train.steps=1"}), sizes);
    const StepRouting& step = run.routing.front();
    REQUIRE(step.figures.aux_loss == Approx(1).epsilon(1e-14));
    REQUIRE(step.figures.z_loss == Approx(std::pow(std::log(8.0), 2)).epsilon(1e-14));
    REQUIRE(step.figures.max_expert_load == 4);  // all on 2 of 8
    for (size_t i = 0; i < step.loads.size(); ++i) REQUIRE(step.loads[i] == (i % 8 < 2 ? 8 * 16 : 0));
    REQUIRE(step.dropped == 0);
  }
}

TEST_CASE("round robin deals slots evenly", "[quick][moe]") {
  for (const Sizes& sizes : {Sizes{}, Sizes{.dp = 2, .tp = 2, .ep = 2}}) {
    const Run run = train(with(kTwoLayers, {"model.moe.routing=round_robin", "train.steps=2"}), sizes);
    for (const StepRouting& step : run.routing) {
      REQUIRE(step.loads == std::vector<int64_t>(16, 8 * 16 * 2 / 8));
      REQUIRE(step.figures.max_expert_load == 1);
    }
    REQUIRE(run.routing[0].digest != run.routing[1].digest);  // of other samples
  }
}

TEST_CASE("slots past an expert's capacity are counted, by sequence", "[quick][moe]") {
  // 16 positions, 2 choices, 8 experts: 4 slots of each sequence on each expert.
  const auto dropped = [](const char* factor, const Sizes& sizes) {
    const Run run = train(with(kTwoLayers, {"model.moe.routing=round_robin", "train.steps=1",
                                            fmt::format("model.moe.capacity_factor={}", factor)}),
                          sizes);
    REQUIRE(total(run.routing.front().loads) == 2 * 8 * 16 * 2);  // before drops
    return run.routing.front().dropped;
  };
  for (const Sizes& sizes : {Sizes{}, Sizes{.tp = 2}, Sizes{.tp = 2, .ep = 2}, Sizes{.pp = 2, .ep = 4}}) {
    INFO(sizes.text());
    REQUIRE(dropped("1.0", sizes) == 0);
    REQUIRE(dropped("0.6", sizes) == 2 * 8 * 8 * 1);  // of 4 slots 3 are kept
    REQUIRE(dropped("0.5", sizes) == 2 * 8 * 8 * 2);
    REQUIRE(dropped("0.01", sizes) == 2 * 8 * 8 * 3);
  }
}

TEST_CASE("balance biases move against the load of the whole batch", "[quick][moe]") {
  constexpr double kRate = 0.01;
  for (const Sizes& sizes : {Sizes{}, Sizes{.dp = 2, .tp = 2, .ep = 2}, Sizes{.pp = 2, .ep = 2}}) {
    const Run run = train(with(kTwoLayers, {"model.moe.balance=bias", "model.moe.bias_update_rate=0.01"}), sizes);
    for (int layer = 0; layer < 2; ++layer) {
      std::vector<double> expected(8, 0);
      for (const StepRouting& step : run.routing)
        for (size_t e = 0; e < 8; ++e) {
          const int64_t load = step.loads[static_cast<size_t>(layer) * 8 + e], mean = 8 * 16 * 2 / 8;
          expected[e] += load < mean ? kRate : load > mean ? -kRate : 0;
        }
      REQUIRE(balance_bias(run, layer) == expected);
      const auto [least, most] = std::minmax_element(expected.begin(), expected.end());
      REQUIRE(*least < *most);
    }
    REQUIRE(run.gradients.count("layers.0.moe.router.balance_bias") == 0);
  }
}

TEST_CASE("balance biases even out the load, and change no weight of a choice", "[quick][moe]") {
  const Overrides base =
      with(kTwoLayers, {"model.layers=1", "train.steps=30", "model.moe.balance=bias", "optimizer.learning_rate=0"});
  const Run run = train(with(base, {"model.moe.bias_update_rate=0.01"}));
  REQUIRE(run.routing.front().figures.max_expert_load > 1.3 * run.routing.back().figures.max_expert_load);
  REQUIRE(train(with(base, {"model.moe.bias_update_rate=0", "train.steps=1"})).losses.front() == run.losses.front());
}

TEST_CASE("schedules, ZeRO stages, overlap and repetition change no bit of a run with experts",
          "[quick][layouts][moe][bitwise]") {
  const Sizes sizes = {.dp = 2, .tp = 2, .pp = 2, .ep = 2};
  const Overrides base =
      with(with(kTwoLayers, kMixtralShape), {"precision.compute=fp32", "model.dropout=0.1", "train.steps=2",
                                             "model.moe.capacity_factor=1.0", "model.moe.shared_experts=1"});
  const Run plain = train(base, sizes);
  for (const char* change :
       {"run.name=again", "parallel.pipeline.schedule=gpipe", "parallel.zero.stage=0", "parallel.zero.overlap=false",
        "parallel.zero.bucket_mb=0.005", "mesh.order=[ep, pp, dp, cp, tp]"}) {
    INFO(change);
    require_same_bits(train(with(base, {change}), sizes), plain);
  }
}

TEST_CASE("threads of a rank change the training of experts by roundings alone", "[quick][layouts][moe]") {
  const Overrides base = with(kTwoLayers, {"model.moe.z_loss_weight=0.02", "train.micro_batch_size=4"});
  require_equal_training(train(with(base, {"device.threads=3"}), {.ep = 2}), train(base), 1e-10);
}

TEST_CASE("initial experts are the same bits on every mesh", "[quick][layouts][moe][bitwise]") {
  const Overrides base = with(kTwoLayers, {"train.steps=1", "model.moe.shared_experts=1"});
  const Run one = train(base);
  for (const Sizes& sizes : {Sizes{.ep = 4}, Sizes{.dp = 2, .tp = 2, .ep = 2}, Sizes{.pp = 2, .ep = 2}})
    REQUIRE(train(base, sizes).initial_weights == one.initial_weights);
}

TEST_CASE("in bf16 ranks along ep change no more than bf16 itself does", "[quick][layouts][moe][bf16]") {
  // Every token goes to every expert, or where it must: no near-tie can flip.
  for (const char* routing : {"model.moe.top_k=8", "model.moe.routing=round_robin"}) {
    const Overrides base = with(with(kTwoLayers, kMixtralShape),
                                {routing, "precision.compute=bf16", "train.steps=2", "model.moe.z_loss_weight=0.02"});
    const Run one = train(base), exact = train(with(base, {"precision.compute=fp32"}));
    for (const Sizes& sizes :
         {Sizes{.ep = 2}, Sizes{.tp = 2, .ep = 2}, Sizes{.dp = 2, .pp = 2, .ep = 2}, Sizes{.tp = 4}}) {
      INFO(sizes.text());
      require_within_roundings(train(base, sizes), one, exact);
    }
    require_within_roundings(train(with(base, {"parallel.sequence_parallel=false"}), {.tp = 2, .ep = 2}), one, exact);
  }
}

TEST_CASE("gradients of experts kept in bf16 are near those kept in fp32", "[quick][moe][bf16]") {
  const Overrides base = with(kTwoLayers, {"precision.compute=bf16", "train.steps=1"});
  const Run exact = train(base, {.ep = 2}), run = train(with(base, {"precision.gradients=bf16"}), {.ep = 2});
  double difference = 0, size = 0;
  for (const auto& [name, values] : run.gradients)
    for (size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(values[i] - exact.gradients.at(name)[i], 2);
      size += std::pow(values[i], 2);
    }
  REQUIRE(difference > 0);
  REQUIRE(std::sqrt(difference / size) < 0.02);
}

}  // namespace quintet::testing
