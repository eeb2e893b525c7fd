// Recomputation: a step that keeps less computes the same bits.
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/support/training_run.h"

namespace quintet::testing {
namespace {

using Overrides = std::vector<std::string>;

const Overrides kShort = {"model.layers=2", "model.hidden_size=32", "model.seq_length=16", "train.steps=2",
                          "train.eval_steps=1"};
const Overrides kExperts = {"model.ffn_hidden_size=40", "model.moe.experts=4", "model.moe.z_loss_weight=0.1"};

void require_same(const Overrides& overrides, const Sizes& sizes = {}) {
  const Overrides base = with(kShort, overrides);
  const Run kept = train(base, sizes);
  for (const char* recompute : {"selective", "full"}) {
    INFO(recompute << " on " << sizes.text());
    for (const std::string& one : overrides) UNSCOPED_INFO(one);
    require_same_bits(train(with(base, {std::string("parallel.recompute=") + recompute}), sizes), kept);
  }
}

}  // namespace

TEST_CASE("recomputation of every family's layers has the bits of keeping them", "[quick][recompute]") {
  for (const Overrides& family : {gpt2(), llama(), qwen3()})
    for (const char* precision : {"fp64", "fp32", "bf16"})
      require_same(with(family, {"model.dropout=0.1", std::string("precision.compute=") + precision}));
  for (const char* activation : {"gelu_exact", "relu_squared"})
    require_same({std::string("model.activation=") + activation, "precision.compute=bf16"});
}

TEST_CASE("recomputed experts see the same rows and are counted once", "[quick][recompute][moe]") {
  for (const char* routing : {"learned", "round_robin"}) {
    const Overrides experts = with(kExperts, {std::string("model.moe.routing=") + routing, "model.dropout=0.1"});
    require_same(with(experts, {"model.moe.capacity_factor=0.7", "model.moe.shared_experts=1"}));
    require_same(with(experts, {"model.moe.balance=bias", "precision.compute=bf16"}), {.ep = 2});
    require_same(with(experts, {"parallel.zero.stage=3"}), {.dp = 2, .tp = 2, .ep = 2});
  }
}

TEST_CASE("recomputation on every axis has the bits of keeping", "[quick][recompute]") {
  for (const Overrides& schedule :
       {Overrides{"parallel.pipeline.schedule=gpipe"}, Overrides{"parallel.pipeline.schedule=1f1b"},
        Overrides{"parallel.pipeline.schedule=interleaved", "parallel.pipeline.virtual_stages=2"},
        Overrides{"parallel.pipeline.schedule=zero_bubble"}, Overrides{"parallel.pipeline.schedule=zero_bubble_v"}})
    require_same(with(schedule, {"model.layers=4", "model.dropout=0.1"}), {.pp = 2});
  for (const char* sequence_parallel : {"true", "false"})
    require_same(with(llama(), {std::string("parallel.sequence_parallel=") + sequence_parallel}), {.tp = 2});
  for (const char* method : {"ring", "all_gather", "ulysses"})
    require_same(with(llama(), {std::string("parallel.context.method=") + method, "model.dropout=0.1",
                                "data.end_of_document=46", "data.document_mask=true"}),
                 {.tp = 2, .cp = 2});
  for (const char* stage : {"0", "2", "3"})
    require_same({std::string("parallel.zero.stage=") + stage}, {.dp = 2, .pp = 2});
}

}  // namespace quintet::testing
