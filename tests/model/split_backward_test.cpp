// Both parts of a backward, run apart, against the backward that runs them layer by layer.
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/model/stage_run.h"
#include "tests/support/training_run.h"

namespace quintet::testing {
namespace {

const device::ElementTypes kDoubles = {DType::fp64, DType::fp64, DType::fp64, DType::fp64};
const device::ElementTypes kHalves = {DType::bf16, DType::fp32, DType::fp32, DType::fp32};

void require_same_parts(const std::vector<std::string>& model, const std::vector<std::string>& layout, int64_t ranks,
                        const device::ElementTypes& types = kDoubles) {
  const config::Config config = tiny_config(
      with(with(model, {"model.layers=2", "model.hidden_size=32", "model.seq_length=16", "train.micro_batch_size=2"}),
           layout),
      ranks);
  std::vector<int> differing(static_cast<size_t>(ranks));  // parameters, by rank
  const int code = comm::run_thread_ranks(ranks, [&](comm::Communicator& communicator) {
    communicator.set_mesh(Mesh(config.mesh.sizes(), config.mesh.order));
    communicator.set_watchdog(60);
    const auto rank = static_cast<size_t>(communicator.placement().rank);
    StageRun run(config, communicator, types);
    const auto first = run.forward(0), second = run.forward(1);
    for (const auto& in_flight : {first.get(), second.get()}) {
      model::Pass pass = run.pass(*in_flight);
      run.stage().backward(pass, in_flight->saved, run.message());
      run.forget();
    }
    const auto together = run.gradients();
    run.clear_gradients();

    // Both weight parts later than both input parts; nothing but what is saved is left by then.
    const auto third = run.forward(0), fourth = run.forward(1);
    for (const auto& in_flight : {third.get(), fourth.get()}) {
      model::Pass pass = run.pass(*in_flight);
      run.stage().backward_input(pass, in_flight->saved, run.message());
      run.forget();
    }
    for (const auto& in_flight : {third.get(), fourth.get()}) {
      model::Pass pass = run.pass(*in_flight);
      run.stage().backward_weight(pass, in_flight->saved);
      run.forget();
    }
    const auto apart = run.gradients();
    if (apart.size() != together.size()) ++differing[rank];
    for (size_t i = 0; i < apart.size(); ++i)
      if (apart[i] != together[i]) ++differing[rank];
  });
  REQUIRE(code == 0);
  REQUIRE(differing == std::vector<int>(differing.size(), 0));
}

const std::vector<std::string> kExperts = {"model.ffn_hidden_size=40", "model.moe.experts=4",
                                           "model.moe.z_loss_weight=0.1"};

}  // namespace

// An untied head: where tied, the head's share of the table's gradient comes before the embedding's of any microbatch.
TEST_CASE("a backward in two parts has the bits of one", "[quick][model]") {
  for (const std::vector<std::string>& family : {gpt2(), llama(), qwen3()}) {
    const std::vector<std::string> model = with(family, {"model.tie_embeddings=false", "model.dropout=0.1"});
    require_same_parts(model, {}, 1);
    require_same_parts(model, {}, 1, kHalves);
    require_same_parts(with(model, {"model.dropout=0"}), {"mesh.tp=2"}, 2);
    require_same_parts(model, {"mesh.tp=2", "parallel.sequence_parallel=false"}, 2);
    require_same_parts(model, {"mesh.cp=2", "mesh.tp=2"}, 4);
  }
}

TEST_CASE("a backward of experts in two parts has the bits of one", "[quick][model][moe]") {
  for (const std::vector<std::string>& shape :
       {kExperts, with(kExperts, {"model.moe.shared_experts=1", "model.moe.capacity_factor=0.9"})}) {
    const std::vector<std::string> model = with(llama(), with(shape, {"model.tie_embeddings=false"}));
    require_same_parts(model, {}, 1);
    require_same_parts(model, {}, 1, kHalves);
    require_same_parts(model, {"mesh.ep=2"}, 2);
    require_same_parts(with(model, {"model.dropout=0.1"}), {"mesh.ep=2", "mesh.tp=2"}, 4);
  }
}

}  // namespace quintet::testing
