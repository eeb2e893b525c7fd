#include "lib/pipeline/memory_bound.h"

#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/support/training_run.h"

namespace quintet::testing {
namespace {

using Overrides = std::vector<std::string>;
using pipeline::memory_advice;
using pipeline::MemoryBound;

// The bound of each rank, against what it took.
void require_near(const Overrides& overrides, const Sizes& sizes) {
  const Overrides all = with(overrides, {"train.steps=2", "train.eval_steps=1"});
  const Run run = train(all, sizes);
  const config::Config config = tiny_config(with(all, sizes.overrides()), sizes.ranks());
  for (int64_t rank = 0; rank < sizes.ranks(); ++rank) {
    const MemoryBound bound = pipeline::memory_bound(
        config, {.rank = rank, .world_size = sizes.ranks(), .local_rank = rank, .local_size = sizes.ranks()});
    const auto measured = run.ranks[static_cast<size_t>(rank)].peak_bytes;
    INFO(sizes.text() << " rank " << rank << ": " << bound.bytes << " of " << measured
                      << " bytes: " << device::describe(bound.by_owner) << " against "
                      << device::describe(run.ranks[static_cast<size_t>(rank)].peak_by_owner));
    REQUIRE(bound.bytes <= measured);
    REQUIRE(static_cast<double>(bound.bytes) >= 0.85 * static_cast<double>(measured));
  }
}

const Overrides kExperts = {"model.hidden_size=32", "model.ffn_hidden_size=48", "model.moe.experts=4",
                            "model.moe.top_k=2", "model.moe.routing=round_robin"};

}  // namespace

TEST_CASE("the bound of memory is what a step takes, on every mesh and under every schedule", "[quick][memory]") {
  for (const Sizes& sizes : {Sizes{}, Sizes{.dp = 2}, Sizes{.tp = 2}, Sizes{.pp = 4}, Sizes{.cp = 2},
                             Sizes{.dp = 2, .tp = 2, .pp = 2}, Sizes{.tp = 2, .pp = 2, .cp = 2}})
    for (const Overrides& family : {gpt2(), llama(), qwen3()}) require_near(family, sizes);
  for (const char* schedule : {"gpipe", "1f1b"})
    for (const char* zero : {"0", "1", "2", "3"})
      require_near({std::string("parallel.pipeline.schedule=") + schedule, std::string("parallel.zero.stage=") + zero},
                   {.dp = 2, .pp = 2});
  require_near({"precision.compute=bf16", "train.micro_batch_size=2"}, {.dp = 2, .tp = 2});
}

TEST_CASE("the bound of memory knows experts", "[quick][memory][moe]") {
  for (const Sizes& sizes : {Sizes{}, Sizes{.ep = 2}, Sizes{.tp = 2, .pp = 2, .ep = 2}}) require_near(kExperts, sizes);
}

TEST_CASE("what can be done about too little memory depends on its owner and the config", "[quick][memory]") {
  const config::Config config = tiny_config({"train.micro_batch_size=2", "mesh.dp=2"}, 2);
  CHECK_THAT(memory_advice(config, device::Owner::moments), Catch::Contains("parallel.zero.stage"));
  CHECK_THAT(memory_advice(config, device::Owner::activations),
             Catch::Contains("train.micro_batch_size") && Catch::Contains("parallel.recompute"));
  CHECK_THAT(memory_advice(tiny_config({}), device::Owner::activations), !Catch::Contains("train.micro_batch_size"));
  CHECK_THAT(memory_advice(tiny_config({"model.moe.experts=4"}), device::Owner::weights), Catch::Contains("mesh.ep"));
}

}  // namespace quintet::testing
