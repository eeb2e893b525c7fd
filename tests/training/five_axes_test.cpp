// All kinds of parallelism at once against one rank.
#include <catch2/catch.hpp>

#include "tests/support/training_run.h"

namespace quintet::testing {
namespace {

using Overrides = std::vector<std::string>;

const Overrides kExperts = {"model.hidden_size=32", "model.ffn_hidden_size=48", "model.moe.experts=4",
                            "model.moe.top_k=2",    "model.init_std=0.1",       "train.eval_steps=1"};

void require_equal_to_one_rank(References& references, const Sizes& sizes, const Overrides& overrides) {
  const Run run = train(overrides, sizes);
  require_equal_training(run, references.of(overrides), 1e-10);
  REQUIRE(steps_routed_alike(run, references.of(overrides)) == run.losses.size());
}

}  // namespace

TEST_CASE("experts choose alike whichever way sequences are cut", "[quick][layouts][moe][context]") {
  References references;
  const Overrides base = with(kExperts, {"train.steps=2", "model.layers=2", "model.moe.capacity_factor=0.9",
                                         "model.moe.z_loss_weight=0.02", "model.moe.aux_loss_weight=0.3"});
  for (const char* method : {"ring", "all_gather", "ulysses"})
    for (const char* balance : {"zigzag", "none"})
      for (const Sizes& sizes : {Sizes{.ep = 2, .cp = 2}, Sizes{.tp = 2, .ep = 2, .cp = 2}})
        require_equal_to_one_rank(references, sizes,
                                  with(base, {std::string("parallel.context.method=") + method,
                                              std::string("parallel.context.balance=") + balance}));
}

TEST_CASE("two ranks along each of the five axes train as one", "[quick][layouts][moe][context]") {
  References references;
  const Sizes sizes = {.dp = 2, .tp = 2, .pp = 2, .ep = 2, .cp = 2};
  require_equal_to_one_rank(references, sizes, with(kExperts, {"model.moe.every=2", "model.dropout=0.1"}));
  require_equal_to_one_rank(
      references, sizes,
      with(kExperts, {"model.moe.shared_experts=1", "model.moe.balance=bias", "model.kv_heads=1", "train.steps=2",
                      "data.end_of_document=32", "data.document_mask=true", "data.mask_end_of_document=true",
                      "parallel.context.method=all_gather", "parallel.pipeline.schedule=gpipe"}));
}

TEST_CASE("every mesh of one and two ranks along each axis trains as one", "[full][layouts][moe][context]") {
  for (const char* method : {"ring", "all_gather", "ulysses"}) {
    References references;
    const Overrides base = with(kExperts, {"model.moe.every=2", "train.steps=2", "model.moe.shared_experts=1",
                                           std::string("parallel.context.method=") + method});
    for (int64_t mesh = 0; mesh < 32; ++mesh) {
      const auto size = [&](int axis) { return int64_t{1} + (mesh >> axis & 1); };
      require_equal_to_one_rank(references, {.dp = size(0), .tp = size(1), .pp = size(2), .ep = size(3), .cp = size(4)},
                                base);
    }
  }
}

TEST_CASE("384 ranks over four axes train as one", "[full][layouts][moe]") {
  References references;
  require_equal_to_one_rank(references, {.dp = 4, .tp = 2, .pp = 12, .ep = 4},
                            with(kExperts, {"model.layers=12", "model.moe.experts=8", "train.global_batch_size=64"}));
}

}  // namespace quintet::testing
