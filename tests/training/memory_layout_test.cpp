// What makes large models fit and keeps pipelines busy, in every combination: ZeRO stages, schedules and recomputation
// on meshes of all five axes train as one rank does, and change no bit where SPEC says so.
#include <algorithm>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include <fmt/core.h>

#include "tests/support/pairwise.h"
#include "tests/support/training_run.h"

namespace quintet::testing {
namespace {

using Overrides = std::vector<std::string>;

// Both meshes and the model's 4 layers fit every schedule: at most 4 stages, chunks of a rank included.
const std::vector<Sizes> kMeshes = {{.dp = 4},
                                    {.dp = 3},
                                    {.dp = 2, .pp = 2},
                                    {.pp = 2, .cp = 2},
                                    {.tp = 2, .pp = 2},
                                    {.dp = 2, .ep = 2, .cp = 2},
                                    {.pp = 2, .ep = 2},
                                    {.dp = 2, .tp = 2, .pp = 2},
                                    {.dp = 2, .tp = 2, .pp = 2, .ep = 2, .cp = 2}};

// The pipeline's ends have the embedding and the head, and no layer where stages between them can have all.
const char* const kBareEnds = "parallel.pipeline.layers_per_stage=bare ends";
std::string bare_ends(int64_t stages) {
  const char* const splits[] = {"4", "4, 0", "0, 4, 0", "0, 2, 2, 0"};
  return fmt::format("parallel.pipeline.layers_per_stage=[{}]", splits[stages - 1]);
}

// Choices: the mesh, then one factor a line.
const std::vector<std::vector<Overrides>> kFactors = {
    {gpt2(), llama(), qwen3(), {"model.moe={experts: 4, top_k: 2, shared_experts: 1}", "model.init_std=0.1"}},
    {{"model.tie_embeddings=true"}, {"model.tie_embeddings=false"}},
    {{"model.dropout=0"}, {"model.dropout=0.1"}},
    {{"precision.compute=fp64"}, {"precision.compute=fp32"}, {"precision.compute=bf16"}},
    {{"parallel.zero.stage=0"}, {"parallel.zero.stage=1"}, {"parallel.zero.stage=2"}, {"parallel.zero.stage=3"}},
    {{"parallel.pipeline.schedule=gpipe"},
     {"parallel.pipeline.schedule=1f1b"},
     {"parallel.pipeline.schedule=interleaved", "parallel.pipeline.virtual_stages=2"},
     {"parallel.pipeline.schedule=zero_bubble"},
     {"parallel.pipeline.schedule=zero_bubble_v"}},
    {{"parallel.recompute=none"}, {"parallel.recompute=selective"}, {"parallel.recompute=full"}},
    {{"parallel.zero.overlap=true"}, {"parallel.zero.overlap=false"}},
    {{"parallel.sequence_parallel=true"}, {"parallel.sequence_parallel=false"}},
    {{"train.micro_batch_size=1"}, {"train.micro_batch_size=2"}},
    {{}, {kBareEnds}},
};
constexpr size_t kModelFactors = 4;  // the first ones
constexpr size_t kPrecision = 3, kSchedule = 5, kSplit = 10;
constexpr size_t kInterleaved = 2, kZeroBubbleV = 4;  // of the schedules: these have two stages a rank
constexpr size_t kMixture = 3;                        // of the models
constexpr const char* kPrecisions[] = {"precision.compute=fp64", "precision.compute=fp32", "precision.compute=bf16"};
constexpr size_t kFp64 = 0, kFp32 = 1, kBf16 = 2;

// 24 sequences a step: even over 1 to 4 data ranks, in several microbatches each.
const Overrides kTiny = {"train.steps=2",
                         "train.eval_steps=1",
                         "model.hidden_size=32",
                         "model.seq_length=16",
                         "model.ffn_hidden_size=48",
                         "train.global_batch_size=24",
                         "parallel.zero.bucket_mb=0.01"};

struct Layout {
  Sizes sizes;
  Overrides model, parallel;
  size_t precision;
};

Layout layout_of(const Combination& choice) {
  Layout layout{.sizes = kMeshes[choice[0]], .model = kTiny, .parallel = {}, .precision = choice[1 + kPrecision]};
  for (size_t factor = 0; factor < kFactors.size(); ++factor) {
    Overrides& part = factor < kModelFactors ? layout.model : layout.parallel;
    part = with(part, kFactors[factor][choice[1 + factor]]);
  }
  if (choice[1 + kSplit] != 0) {
    const size_t schedule = choice[1 + kSchedule];
    const int64_t stages_of_rank = schedule == kInterleaved || schedule == kZeroBubbleV ? 2 : 1;
    layout.parallel.back() = bare_ends(layout.sizes.pp * stages_of_rank);
  }
  // Roundings of bf16 send tokens to other experts, after which gradients tell nothing.
  if (choice[1] == kMixture && layout.precision == kBf16)
    layout.model = with(layout.model, {"model.moe.routing=round_robin"});
  return layout;
}

// Layouts in which every pair of choices occurs.
std::vector<Combination> covering_layouts(uint64_t seed) {
  std::vector<size_t> choices = {kMeshes.size()};
  for (const std::vector<Overrides>& factor : kFactors) choices.push_back(factor.size());
  return pairwise_cover(all_combinations(choices), seed);
}

void require_equal_to_one_rank(References& references, const Layout& layout) {
  INFO(layout.sizes.text());
  const Overrides all = with(layout.model, layout.parallel);
  for (const std::string& one : all) UNSCOPED_INFO(one);
  const Run run = train(all, layout.sizes);
  if (layout.precision != kBf16) {
    require_equal_training(run, references.of(all), layout.precision == kFp64 ? 1e-10 : 1e-5);
  } else {
    require_within_roundings(run, references.of(all), references.of(with(all, {kPrecisions[kFp32]})));
  }
}

// One model on one mesh: what `changes` ask for must not change a bit.
void require_same_bits_under(const Overrides& base, const Sizes& sizes, const std::vector<Overrides>& changes) {
  const Run run = train(base, sizes);
  for (const Overrides& change : changes) {
    for (const std::string& one : change) UNSCOPED_INFO(one);
    require_same_bits(train(with(base, change), sizes), run);
  }
}

}  // namespace

TEST_CASE("layouts of ZeRO, schedule and recomputation drawn by the commit train as one rank does",
          "[quick][layouts][fit]") {
  constexpr size_t kLayouts = 8;
  std::vector<Combination> layouts = covering_layouts(test_seed());
  layouts.resize(std::min(layouts.size(), kLayouts));
  References references;
  for (const Combination& choice : layouts) require_equal_to_one_rank(references, layout_of(choice));
}

TEST_CASE("every pair of choices of ZeRO, schedule, recomputation, precision and mesh trains as one rank does",
          "[full][layouts][fit]") {
  References references;
  for (const Combination& choice : covering_layouts(test_seed()))
    require_equal_to_one_rank(references, layout_of(choice));
}

TEST_CASE("schedules, recomputation, overlap and ZeRO change no bit where the order of sums is the same",
          "[quick][layouts][fit][bitwise]") {
  const Sizes sizes = {.dp = 2, .pp = 2};
  const Overrides zero_1 = {"parallel.zero.stage=1"}, zero_2 = {"parallel.zero.stage=2"},
                  zero_3 = {"parallel.zero.stage=3"}, selective = {"parallel.recompute=selective"},
                  full = {"parallel.recompute=full"}, no_overlap = {"parallel.zero.overlap=false"},
                  gpipe = {"parallel.pipeline.schedule=gpipe"},
                  zero_bubble = {"parallel.pipeline.schedule=zero_bubble"},
                  interleaved = {"parallel.pipeline.schedule=interleaved", "parallel.pipeline.virtual_stages=2"};
  const Overrides dense = with(kTiny, {"model.dropout=0.1", "precision.compute=bf16"});
  const Overrides experts =
      with(kTiny, {"model.moe={experts: 4, top_k: 2, balance: bias}", "model.tie_embeddings=false"});
  for (const Overrides& model : {dense, experts}) {
    require_same_bits_under(with(model, zero_1), sizes,
                            {gpipe,
                             zero_bubble,
                             interleaved,
                             selective,
                             with(full, zero_bubble),
                             with(full, interleaved),
                             no_overlap,
                             {"parallel.zero.stage=0"}});
    require_same_bits_under(with(model, zero_2), sizes,
                            {with(zero_3, gpipe), with(zero_3, with(zero_bubble, full)), with(zero_3, interleaved),
                             with(zero_3, selective), with(zero_3, no_overlap), no_overlap});
    const Overrides one_microbatch = with(model, {"train.micro_batch_size=12"});
    require_same_bits_under(with(one_microbatch, zero_1), sizes,
                            {zero_2, zero_3, with(zero_3, with(zero_bubble, selective))});
  }
}

}  // namespace quintet::testing
