// A run takes what it needs in its first step, and no more later, wherever its router sends the rows.
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include <fmt/core.h>

#include "tests/support/training_run.h"

namespace quintet::testing {
namespace {

using Overrides = std::vector<std::string>;

// Routers that learn fast, so that loads move.
const Overrides kExperts = {"model.hidden_size=32", "model.ffn_hidden_size=48", "model.moe.experts=4",
                            "model.moe.top_k=2",    "model.init_std=0.1",       "train.eval_steps=1",
                            "model.layers=2",       "precision.compute=fp32",   "optimizer.learning_rate=1.0e-2"};

void require_steady(const Overrides& overrides, const Sizes& sizes) {
  const Run run = train(overrides, sizes);
  for (size_t rank = 0; rank < run.ranks.size(); ++rank) {
    const std::vector<int64_t>& held = run.ranks[rank].held_bytes;
    for (size_t step = 1; step < held.size(); ++step) {
      INFO(fmt::format("step {} of rank {} on {}", step + 1, rank, sizes.text()));
      REQUIRE(held[step] == held[0]);
    }
  }
}

void require_steady_over(int64_t steps) {
  const std::string length = fmt::format("train.steps={}", steps);
  for (const char* routing : {"learned", "round_robin"})
    for (const Sizes& sizes :
         {Sizes{}, Sizes{.ep = 2}, Sizes{.tp = 2, .pp = 2, .ep = 2}, Sizes{.dp = 2, .ep = 2, .cp = 2}})
      require_steady(with(kExperts, {std::string("model.moe.routing=") + routing, length}), sizes);
  for (const Overrides& more :
       {Overrides{"parallel.pipeline.schedule=gpipe", "parallel.zero.stage=3"},
        Overrides{"parallel.pipeline.schedule=zero_bubble_v", "model.layers=4", "parallel.recompute=selective"},
        Overrides{"parallel.pipeline.schedule=interleaved", "parallel.pipeline.virtual_stages=2", "model.layers=4",
                  "parallel.recompute=full"}})
    require_steady(with(with(kExperts, more), {length}), {.pp = 2, .ep = 2});
}

}  // namespace

TEST_CASE("no memory is taken after the first step", "[quick][memory][moe]") { require_steady_over(12); }

TEST_CASE("no memory is taken after the first step of 200", "[full][memory][moe]") { require_steady_over(200); }

}  // namespace quintet::testing
