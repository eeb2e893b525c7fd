#include "lib/pipeline/memory_bound.h"

#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "lib/comm/null_world.h"
#include "lib/device/null_device.h"
#include "lib/pipeline/engine.h"
#include "tests/support/training_run.h"

namespace quintet::testing {
namespace {

using Overrides = std::vector<std::string>;
using pipeline::memory_advice;
using pipeline::MemoryBound;

// What each rank takes in two steps and an evaluation, and its bound.
template <typename Compare>
void compare(const Overrides& overrides, const Sizes& sizes, const Compare& compare_rank) {
  const Overrides all = with(overrides, {"train.steps=2", "train.eval_steps=1"});
  const Run run = train(all, sizes);
  const config::Config config = tiny_config(with(with(all, {"data.validation=0.1"}), sizes.overrides()), sizes.ranks());
  for (int64_t rank = 0; rank < sizes.ranks(); ++rank) {
    const MemoryBound bound = pipeline::memory_bound(
        config, {.rank = rank, .world_size = sizes.ranks(), .local_rank = rank, .local_size = sizes.ranks()});
    const RankView& taken = run.ranks[static_cast<size_t>(rank)];
    INFO(sizes.text() << " rank " << rank << ": " << bound.bytes << " of " << taken.peak_bytes << " bytes: "
                      << device::describe(bound.by_owner) << " against " << device::describe(taken.peak_by_owner));
    compare_rank(bound, taken);
  }
}

void require_exact(const Overrides& overrides, const Sizes& sizes) {
  compare(overrides, sizes, [](const MemoryBound& bound, const RankView& taken) {
    REQUIRE(bound.bytes == taken.peak_bytes);
    for (const device::Owner owner : device::kOwners) {
      CAPTURE(device::name_of(owner));
      if (owner != device::Owner::workspace)  // the test's own looks at whole gradients are in it
        REQUIRE(bound.by_owner[owner] == taken.peak_by_owner[owner]);
    }
  });
}

const Overrides kExperts = {"model.hidden_size=32", "model.ffn_hidden_size=48", "model.moe.experts=4",
                            "model.moe.top_k=2"};

}  // namespace

TEST_CASE("the bound of memory is what a step takes to the byte, on every mesh", "[quick][memory]") {
  for (const Sizes& sizes : {Sizes{}, Sizes{.dp = 2}, Sizes{.tp = 2}, Sizes{.pp = 4}, Sizes{.cp = 2},
                             Sizes{.dp = 2, .tp = 2, .pp = 2}, Sizes{.tp = 2, .pp = 2, .cp = 2}})
    for (const Overrides& family : {gpt2(), llama(), qwen3()}) require_exact(family, sizes);
  require_exact({"precision.compute=bf16", "train.micro_batch_size=2"}, {.dp = 2, .tp = 2});
}

TEST_CASE("the bound of memory is what a step takes to the byte, whatever the schedule, ZeRO and recomputation",
          "[quick][memory]") {
  for (const Overrides& schedule :
       {Overrides{"parallel.pipeline.schedule=gpipe"}, Overrides{"parallel.pipeline.schedule=1f1b"},
        Overrides{"parallel.pipeline.schedule=interleaved", "parallel.pipeline.virtual_stages=2"},
        Overrides{"parallel.pipeline.schedule=zero_bubble"}, Overrides{"parallel.pipeline.schedule=zero_bubble_v"}})
    for (const char* more : {"parallel.zero.stage=0", "parallel.zero.stage=1", "parallel.zero.stage=2",
                             "parallel.zero.stage=3", "parallel.recompute=selective", "parallel.recompute=full"})
      require_exact(with(schedule, {more}), {.dp = 2, .pp = 2});
}

TEST_CASE("the bound of memory has room for rows that routing does not spread evenly", "[quick][memory][moe]") {
  require_exact(kExperts, {});
  for (const char* routing : {"model.moe.routing=learned", "model.moe.routing=round_robin"})
    for (const Sizes& sizes : {Sizes{.ep = 2}, Sizes{.tp = 2, .pp = 2, .ep = 2}, Sizes{.dp = 2, .ep = 2, .cp = 2}})
      compare(with(kExperts, {routing}), sizes, [](const MemoryBound& bound, const RankView& taken) {
        REQUIRE(bound.bytes >= taken.peak_bytes);
        for (const device::Owner owner : device::kOwners) {
          CAPTURE(device::name_of(owner));
          if (owner != device::Owner::expert_buffers && owner != device::Owner::workspace)
            REQUIRE(bound.by_owner[owner] == taken.peak_by_owner[owner]);
        }
        const auto room = static_cast<double>(bound.by_owner[device::Owner::expert_buffers]),
                   used = static_cast<double>(taken.peak_by_owner[device::Owner::expert_buffers]);
        REQUIRE(used <= room);
        REQUIRE(used > 0.4 * room);
      });
}

TEST_CASE("a rank without memory for its step says what it was for and what would help", "[quick][memory]") {
  const config::Config config = tiny_config({"train.micro_batch_size=2"});
  const comm::Placement placement{.rank = 0, .world_size = 1, .local_rank = 0, .local_size = 1};
  const int64_t needed = pipeline::memory_bound(config, placement).bytes;
  const auto step_with = [&](int64_t bytes) {
    const auto device = device::make_null_device(bytes);
    comm::Communicator communicator(placement, comm::make_null_transport());
    communicator.set_mesh(Mesh(config.mesh.sizes(), config.mesh.order));
    pipeline::Engine engine(config, communicator, *device);
  };
  const auto contains = [](const char* text) { return Catch::Contains(text); };
  CHECK_NOTHROW(step_with(needed));
  CHECK_THROWS_WITH(step_with(needed / 8), contains("memory: weights asks for ") &&
                                               contains(" MiB more than there is") &&
                                               contains("the rank holds 0.0 MiB") && contains("a larger mesh.tp"));
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
