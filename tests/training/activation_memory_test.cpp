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

// The formula of lib/README.md for a layer of the tiny model and one sequence, in bf16.
struct LayerShape {
  bool is_gpt2;
  int64_t tensor_ranks;
  bool sequence_parallel;
  int64_t T = 32, H = 64, N = 4, K = 4, D = 16, F = 256;  // K: key-value heads
};
double formula(const LayerShape& s, const std::string& recompute) {
  constexpr double kCompute = 2, kStatistics = 4;
  const auto t = static_cast<double>(s.tensor_ranks), T = static_cast<double>(s.T), H = static_cast<double>(s.H);
  const auto N = static_cast<double>(s.N), D = static_cast<double>(s.D), F = static_cast<double>(s.F);
  const double rows = s.sequence_parallel ? T / t : T;
  if (recompute == "full") return kCompute * rows * H;
  const double norms = 4 * kCompute * rows * H + (s.is_gpt2 ? 4 : 2) * kStatistics * rows;
  const double heads = kCompute * T * (N + 2 * static_cast<double>(s.K)) * D / t;
  const double before_activation = kCompute * T * F * (s.is_gpt2 ? 1 : 2) / t;
  const double core = kCompute * T * N * D / t + kStatistics * T * N / t, hidden = kCompute * T * F / t;
  return norms + heads + before_activation + (recompute == "none" ? core + hidden : 0);
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

TEST_CASE("a layer's activations take what the formula says, recomputed or kept", "[quick][memory][recompute]") {
  for (const bool is_gpt2 : {true, false})
    for (const auto& [tensor_ranks, sequence_parallel] :
         {std::pair<int64_t, bool>{1, true}, {2, true}, {2, false}, {4, true}})
      for (const std::string recompute : {"none", "selective", "full"}) {
        const LayerShape shape = {
            .is_gpt2 = is_gpt2, .tensor_ranks = tensor_ranks, .sequence_parallel = sequence_parallel};
        const double bytes = bytes_per_layer(
            with(is_gpt2 ? gpt2() : llama(),
                 {"precision.compute=bf16", "model.kv_heads=4", "model.ffn_hidden_size=256",
                  fmt::format("parallel.sequence_parallel={}", sequence_parallel), "parallel.recompute=" + recompute}),
            tensor_ranks);
        INFO(recompute << ", " << tensor_ranks << " tensor ranks: " << bytes << " bytes, by the formula "
                       << formula(shape, recompute));
        REQUIRE(bytes == Approx(formula(shape, recompute)).epsilon(0.05));
        if (!is_gpt2) continue;
        // Korthikanti et al. 2022, tables 2 and 5; s * b * h = T * H here.
        const auto published = static_cast<double>(shape.T * shape.H);
        if (recompute == "selective" && sequence_parallel)
          REQUIRE(bytes <= 34 * published / static_cast<double>(tensor_ranks));
        if (recompute == "full") REQUIRE(bytes <= 2 * published);
      }
}

TEST_CASE("logits live for a chunk of one microbatch, not from forward to backward", "[quick][memory]") {
  const Run run = train({"train.steps=2", "train.eval_steps=1", "train.micro_batch_size=2", "model.vocab_size=300",
                         "parallel.pipeline.schedule=gpipe"},
                        {.pp = 2});
  for (const RankView& view : run.ranks) {
    const int64_t logits = view.peak_by_owner[device::Owner::logits];
    REQUIRE(logits == (view.coordinate[Axis::pp] == 1 ? 2 * 32 * 300 * 8 : 0));
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
    // The next microbatch's input, with its tokens, may already be on its way.
    constexpr double kNextInput = 32 * (64 * 8 + 3 * 4 + 8);
    const double least = share * static_cast<double>(activation_peak(all.ranks[rank]));
    const auto kept = static_cast<double>(activation_peak(few.ranks[rank]));
    REQUIRE(kept >= 0.999 * least);
    REQUIRE(kept <= 1.001 * (least + (stage == 0 ? 0 : kNextInput)));
  }
}

}  // namespace quintet::testing
