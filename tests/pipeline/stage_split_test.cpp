#include "lib/pipeline/stage_split.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include <catch2/catch.hpp>

#include "lib/base/error.h"
#include "lib/base/random.h"

namespace quintet::pipeline {
namespace {

using Split = std::vector<int64_t>;

config::Model model(int64_t layers, int64_t vocab_size) {
  config::Model model;
  model.layers = layers;
  model.vocab_size = vocab_size;
  model.seq_length = 16;
  model.hidden_size = 8;
  model.heads = 4;
  model.kv_heads = 2;
  model.head_dim = 3;
  model.ffn_hidden_size = 20;
  model.activation = config::Activation::gelu;
  model.position = config::Position::rope;
  return model;
}

// Every `every`-th layer is a mixture of experts as wide as `width`.
config::Model with_experts(config::Model model, int64_t every, int64_t width) {
  model.moe.emplace();
  model.moe->experts = 10;
  model.moe->top_k = 3;
  model.moe->shared_experts = 1;
  model.moe->ffn_hidden_size = width;
  model.moe->every = every;
  return model;
}

int64_t total(const Split& split) { return std::accumulate(split.begin(), split.end(), int64_t{0}); }

// The forward cost of the slowest stage, where every `every`-th layer is a mixture of experts; 0: none.
double slowest(const ForwardCosts& costs, const Split& split, int64_t every = 0) {
  double most = 0;
  int64_t layer = 0;
  for (size_t stage = 0; stage < split.size(); ++stage) {
    double cost = 0;
    for (int64_t end = layer + split[stage]; layer < end; ++layer)
      cost += every > 0 && layer % every == every - 1 ? costs.moe_layer : costs.layer;
    if (stage == 0) cost += costs.embedding;
    if (stage == split.size() - 1) cost += costs.head;
    most = std::max(most, cost);
  }
  return most;
}

// Of all splits that begin with `begun` and go on with at least one layer a stage, but for the first and the last.
double best_of_all(const ForwardCosts& costs, int64_t layers, int64_t stages, int64_t every = 0, Split begun = {}) {
  const int64_t left = layers - total(begun), stages_left = stages - std::ssize(begun);
  begun.push_back(left);
  if (stages_left == 1) return slowest(costs, begun, every);
  double best = std::numeric_limits<double>::infinity();
  const bool is_first = begun.size() == 1;
  for (begun.back() = is_first ? 0 : 1; begun.back() <= left - (stages_left - 2); ++begun.back())
    best = std::min(best, best_of_all(costs, layers, stages, every, begun));
  return best;
}

bool only_ends_are_empty(const Split& split) {
  return split.size() < 3 || *std::min_element(split.begin() + 1, split.end() - 1) >= 1;
}

}  // namespace

TEST_CASE("the forward costs of a model count its matrices", "[quick][pipeline]") {
  config::Model small = model(2, 50);
  ForwardCosts costs = forward_costs(small);
  CHECK(costs.embedding == 8);
  // q and output 8 x 12, k and v 8 x 6, up and down 8 x 20; scores and their use over half of 16 positions.
  CHECK(costs.layer == 2 * (2 * 96 + 2 * 48 + 2 * 160) + 2 * 2 * 12 * 8);
  CHECK(costs.head == 2 * 50 * 8);
  small.activation = config::Activation::swiglu;
  small.position = config::Position::learned;
  costs = forward_costs(small);
  CHECK(costs.embedding == 16);
  CHECK(costs.layer == 2 * (2 * 96 + 2 * 48 + 3 * 160) + 2 * 2 * 12 * 8);
}

TEST_CASE("six layers on four stages are all trained", "[quick][pipeline][B16]") {
  const Split split = split_layers(model(6, 50), 4);
  CHECK(total(split) == 6);
  CHECK(split == Split{1, 2, 2, 1});  // the embedding and the head lighten the ends
}

TEST_CASE("a split leaves no layer out and no stage between the ends empty", "[quick][pipeline][B16]") {
  for (uint64_t draw = 0; draw < 200; ++draw) {
    const PhiloxBlock random = philox(16, draw, 0);
    const int64_t stages = 1 + random[0] % 12, layers = stages + random[1] % 60, vocab = 1 + random[2] % 4000;
    CAPTURE(stages, layers, vocab);
    const Split split = split_layers(model(layers, vocab), stages);
    REQUIRE(std::ssize(split) == stages);
    REQUIRE(total(split) == layers);
    REQUIRE(only_ends_are_empty(split));
  }
}

TEST_CASE("no split has a faster slowest stage", "[quick][pipeline]") {
  for (uint64_t draw = 0; draw < 150; ++draw) {
    const PhiloxBlock random = philox(17, draw, 0);
    const int64_t stages = 1 + random[0] % 5, layers = stages + random[1] % 9, vocab = 1 + random[2] % 700;
    CAPTURE(stages, layers, vocab);
    const config::Model drawn = model(layers, vocab);
    const ForwardCosts costs = forward_costs(drawn);
    REQUIRE(slowest(costs, split_layers(drawn, stages)) == Approx(best_of_all(costs, layers, stages)).epsilon(1e-12));
  }
}

TEST_CASE("a layer of experts costs its router and the experts that a token passes through", "[quick][pipeline][moe]") {
  const config::Model mixed = with_experts(model(4, 50), 2, 7);
  const ForwardCosts costs = forward_costs(mixed), dense = forward_costs(model(4, 50));
  CHECK(costs.layer == dense.layer);
  // A router of 10 x 8, then 3 chosen and 1 shared, each up and down 8 x 7, for up and down 8 x 20.
  CHECK(costs.moe_layer == costs.layer - 2 * 2 * 8 * 20 + 2 * 8 * (10 + 4 * 2 * 7));
}

TEST_CASE("no split of layers of two costs has a faster slowest stage", "[quick][pipeline][moe]") {
  for (uint64_t draw = 0; draw < 150; ++draw) {
    const PhiloxBlock random = philox(18, draw, 0);
    const int64_t stages = 1 + random[0] % 5, layers = stages + random[1] % 9, vocab = 1 + random[2] % 700;
    const int64_t every = 1 + random[3] % 4, width = 1 + philox(19, draw, 0)[0] % 60;
    CAPTURE(stages, layers, vocab, every, width);
    const config::Model drawn = with_experts(model(layers, vocab), every, width);
    const ForwardCosts costs = forward_costs(drawn);
    const Split split = split_layers(drawn, stages);
    REQUIRE(std::ssize(split) == stages);
    REQUIRE(total(split) == layers);
    REQUIRE(only_ends_are_empty(split));
    REQUIRE(slowest(costs, split, every) == Approx(best_of_all(costs, layers, stages, every)).epsilon(1e-12));
  }
}

TEST_CASE("a stage of costly layers holds fewer", "[quick][pipeline][moe]") {
  // The last of three layers costs as much as many others.
  CHECK(split_layers(with_experts(model(3, 1), 3, 1000), 2) == Split{2, 1});
  CHECK(split_layers(with_experts(model(6, 1), 3, 1000), 2) == Split{3, 3});
  CHECK(split_layers(with_experts(model(6, 1), 3, 1000), 4) == Split{2, 1, 2, 1});
}

TEST_CASE("a large vocabulary moves layers off the last stage", "[quick][pipeline]") {
  const ForwardCosts costs = forward_costs(model(8, 50));
  CHECK(split_layers(model(8, 1), 2) == Split{4, 4});
  const auto vocab_of_three_layers = static_cast<int64_t>(3 * costs.layer / 16);
  CHECK(split_layers(model(8, vocab_of_three_layers), 2) == Split{5, 3});
}

TEST_CASE("a head that outweighs all layers has a stage to itself", "[quick][pipeline]") {
  CHECK(split_layers(model(8, 100000), 2) == Split{8, 0});
  CHECK(split_layers(model(9, 100000), 3) == Split{4, 5, 0});
  CHECK(split_layers(model(2, 100000), 2) == Split{2, 0});
  CHECK(split_layers(model(1, 100000), 1) == Split{1});
}

TEST_CASE("layers that are computed again move to the stage of the head", "[quick][pipeline]") {
  config::Model costly_head = model(12, 50);
  const auto split_where_head_is = [&](double layers, config::Recompute recompute) {
    costly_head.vocab_size = static_cast<int64_t>(layers * forward_costs(costly_head).layer / 16);
    return split_layers(costly_head, 2, recompute);
  };
  // Twelve layers and a head of eight are ten a stage. Where a layer runs forward twice, it costs 4/3 of itself.
  CHECK(split_where_head_is(8, config::Recompute::none) == Split{10, 2});
  CHECK(split_where_head_is(8, config::Recompute::full) == Split{9, 3});
  // In long sequences the attention core is nearly all of a layer.
  costly_head.seq_length = 100000;
  CHECK(split_where_head_is(8, config::Recompute::none) == Split{10, 2});
  CHECK(split_where_head_is(8, config::Recompute::selective) == Split{9, 3});
}

TEST_CASE("fewer layers than stages are not split", "[quick][pipeline]") {
  CHECK_THROWS_AS(split_layers(model(3, 50), 4), CheckFailure);
}

TEST_CASE("an explicit split of layers is taken as it is", "[quick][pipeline]") {
  config::Config config;
  config.model = model(6, 50);
  config.mesh.pp = 3;
  CHECK(layers_of_stages(config) == split_layers(config.model, 3));
  config.parallel.recompute = config::Recompute::full;
  CHECK(layers_of_stages(config) == split_layers(config.model, 3, config::Recompute::full));
  config.parallel.pipeline.layers_per_stage = Split{3, 1, 2};
  CHECK(layers_of_stages(config) == Split{3, 1, 2});
}

}  // namespace quintet::pipeline
