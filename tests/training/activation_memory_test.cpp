// What a rank keeps between forward and backward: a share of each layer, and of as few microbatches as the schedule
// says.
#include <algorithm>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include <fmt/core.h>

#include "tests/support/training_run.h"

namespace quintet::testing {
namespace {

int64_t activation_peak(const RankView& view) { return view.peak_by_owner[device::Owner::activations]; }

// Bytes that the fullest rank keeps for one layer and microbatch.
double bytes_per_layer(const std::vector<std::string>& overrides, int64_t tensor_ranks) {
  const auto peak = [&](int64_t layers) {
    const Run run = train(with(overrides, {fmt::format("model.layers={}", layers), "train.steps=1",
                                           "train.eval_steps=1", "train.global_batch_size=1"}),
                          {.tp = tensor_ranks});
    int64_t most = 0;
    for (const RankView& view : run.ranks) most = std::max(most, activation_peak(view));
    return most;
  };
  return static_cast<double>(peak(4) - peak(2)) / 2;
}

// One step of one long sequence on `ranks` context ranks: bytes of activations on the fullest one.
int64_t context_peak(const std::string& method, int64_t sequence_length, int64_t ranks) {
  const Run run =
      train({"model.hidden_size=32", "model.heads=8", "model.layers=1", "model.position=rope", "train.steps=1",
             "train.eval_steps=1", "train.global_batch_size=1", "data.validation=0.3", "precision.compute=fp32",
             "parallel.context.method=" + method, fmt::format("model.seq_length={}", sequence_length)},
            {.cp = ranks});
  int64_t most = 0;
  for (const RankView& view : run.ranks) most = std::max(most, activation_peak(view));
  return most;
}

// No constant is needed beside the share.
void require_shares(const std::string& method, int64_t sequence_length, const std::vector<int64_t>& ranks) {
  const auto whole = static_cast<double>(context_peak(method, sequence_length, 1));
  for (const int64_t count : ranks) {
    const auto share = static_cast<double>(context_peak(method, sequence_length, count));
    INFO(method << ": " << share << " of " << whole << " bytes on each of " << count);
    REQUIRE(share == Approx(whole / static_cast<double>(count)).epsilon(0.1));
  }
}

}  // namespace

TEST_CASE("activations are shared evenly by context ranks", "[quick][memory][context]") {
  for (const char* method : {"ring", "all_gather", "ulysses"}) require_shares(method, 1024, {2, 8});
}

TEST_CASE("activations of 8192 positions are shared evenly by 2, 4 and 8 context ranks", "[full][memory][context]") {
  for (const char* method : {"ring", "all_gather", "ulysses"}) require_shares(method, 8192, {2, 4, 8});
}

TEST_CASE("a layer's activations are shared evenly by tensor ranks under sequence parallelism", "[quick][memory]") {
  for (const std::vector<std::string>& model : {gpt2(), with(llama(), {"model.kv_heads=4"})}) {
    const double whole = bytes_per_layer(model, 1);
    for (const int64_t tensor_ranks : {2, 4}) {
      const double share = bytes_per_layer(model, tensor_ranks);
      INFO(share << " of " << whole << " bytes on each of " << tensor_ranks);
      REQUIRE(share == Approx(whole / static_cast<double>(tensor_ranks)).epsilon(0.05));
    }
    REQUIRE(bytes_per_layer(with(model, {"parallel.sequence_parallel=false"}), 4) > 1.3 * whole / 4);
  }
}

TEST_CASE("under 1f1b a stage keeps as many microbatches as stages follow it, itself counted", "[quick][memory]") {
  constexpr int64_t kStages = 4, kMicrobatches = 8;
  const std::vector<std::string> base = {"train.steps=2", "train.eval_steps=1"};
  const Run all = train(with(base, {"parallel.pipeline.schedule=gpipe"}), {.pp = kStages});
  const Run few = train(with(base, {"parallel.pipeline.schedule=1f1b"}), {.pp = kStages});
  for (size_t rank = 0; rank < kStages; ++rank) {
    const int64_t stage = few.ranks[rank].coordinate[Axis::pp];
    const double share = static_cast<double>(kStages - stage) / kMicrobatches;
    INFO("stage " << stage);
    // The next microbatch's input may already be on its way.
    REQUIRE(static_cast<double>(activation_peak(few.ranks[rank])) ==
            Approx(share * static_cast<double>(activation_peak(all.ranks[rank]))).epsilon(stage == 0 ? 0.001 : 0.05));
  }
}

}  // namespace quintet::testing
