// The heart: every layout trains as one rank does.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include <fmt/core.h>

#include "lib/base/random.h"
#include "tests/support/training_run.h"

namespace quintet::testing {
namespace {

struct Layout {
  std::string model;
  std::string compute;
  int64_t dp, zero, micro_batch;
  std::string text() const {
    return fmt::format("{} in {}, dp {}, ZeRO {}, microbatches of {}", model, compute, dp, zero, micro_batch);
  }
};

std::vector<std::string> model_named(const std::string& name) {
  if (name == "gpt2") return gpt2();
  return name == "llama" ? llama() : qwen3();
}

std::vector<std::string> overrides_of(const Layout& layout) {
  return with(model_named(layout.model),
              {"precision.compute=" + layout.compute, fmt::format("parallel.zero.stage={}", layout.zero),
               fmt::format("train.micro_batch_size={}", layout.micro_batch), "parallel.zero.bucket_mb=0.05"});
}

std::vector<Layout> all_layouts() {
  std::vector<Layout> layouts;
  for (const std::string model : {"gpt2", "llama", "qwen3"})
    for (const std::string compute : {"fp64", "fp32"})
      for (const int64_t dp : {1, 2, 4, 8})
        for (const int64_t zero : {0, 1, 2, 3})
          for (const int64_t micro_batch : {1, 2, 4, 8})
            if (dp * micro_batch <= 8) layouts.push_back({model, compute, dp, zero, micro_batch});
  return layouts;
}

// `count` layouts drawn by the seed of this commit.
std::vector<Layout> sampled_layouts(size_t count) {
  std::vector<Layout> layouts = all_layouts();
  for (size_t i = 0; i < count; ++i) {
    const uint64_t draw = philox(test_seed(), i, 0)[0];
    std::swap(layouts[i], layouts[i + draw % (layouts.size() - i)]);
  }
  layouts.resize(count);
  return layouts;
}

void require_equal_to_one_rank(const std::vector<Layout>& layouts) {
  std::map<std::string, Run> references;
  for (const Layout& layout : layouts) {
    const std::string key = layout.model + layout.compute;
    if (references.count(key) == 0) references[key] = train(overrides_of({layout.model, layout.compute, 1, 0, 8}));
    INFO(layout.text());
    require_equal_training(train(overrides_of(layout), layout.dp), references.at(key),
                           layout.compute == "fp64" ? 1e-10 : 1e-5);
  }
}

}  // namespace

TEST_CASE("data ranks, ZeRO stages and microbatches train as one rank does", "[quick][layouts]") {
  require_equal_to_one_rank(sampled_layouts(6));
}

TEST_CASE("every number of data ranks, ZeRO stage and microbatch split trains as one rank does", "[full][layouts]") {
  require_equal_to_one_rank(all_layouts());
}

TEST_CASE("ZeRO 0 and 1 give the same bits", "[quick][layouts][bitwise]") {
  for (const int64_t ranks : {2, 4}) {
    const std::vector<std::string> base = with(llama(), {"precision.compute=fp32", "parallel.zero.bucket_mb=0.1"});
    require_same_bits(train(with(base, {"parallel.zero.stage=1"}), ranks),
                      train(with(base, {"parallel.zero.stage=0"}), ranks));
  }
}

TEST_CASE("overlapped reductions, bucket sizes and schedules change no bit", "[quick][layouts][bitwise]") {
  const std::vector<std::string> base = with(gpt2(), {"precision.compute=fp32", "parallel.zero.overlap=false"});
  const Run plain = train(base, 2);
  require_same_bits(train(with(base, {"parallel.zero.overlap=true"}), 2), plain);
  require_same_bits(train(with(base, {"parallel.zero.bucket_mb=0.01", "parallel.zero.overlap=true"}), 2), plain);
  require_same_bits(train(with(base, {"parallel.pipeline.schedule=gpipe"}), 2), plain);
}

TEST_CASE("the order of axes in the mesh changes no bit", "[quick][layouts][bitwise]") {
  require_same_bits(train({"mesh.order=[dp, pp, ep, cp, tp]"}, 4), train({}, 4));
}

TEST_CASE("a run repeated gives the same bits", "[quick][layouts][bitwise]") {
  const std::vector<std::string> overrides = {"precision.compute=fp32", "model.dropout=0.1"};
  require_same_bits(train(overrides, 4), train(overrides, 4));
}

TEST_CASE("initial weights are the same bits on every mesh and in every precision", "[quick][layouts][bitwise]") {
  const std::vector<std::string> base = with(qwen3(), {"train.steps=1"});
  const Run one = train(base);
  for (const int64_t ranks : {2, 8}) REQUIRE(train(base, ranks).initial_weights == one.initial_weights);
  REQUIRE(train(with(base, {"precision.compute=fp32"}), 2).initial_weights == one.initial_weights);
}

TEST_CASE("dropout drops the same elements on every mesh", "[quick][layouts]") {
  const std::vector<std::string> base = {"model.dropout=0.1"};
  const Run one = train(with(base, {"train.micro_batch_size=8"}));
  require_equal_training(train(with(base, {"train.micro_batch_size=2"}), 4), one, 1e-10);
  require_equal_training(train(base, {.tp = 2, .pp = 2}), one, 1e-10);
  require_equal_training(train(with(base, {"parallel.sequence_parallel=false"}), {.tp = 4}), one, 1e-10);
  REQUIRE(one.losses.front() != train({"train.micro_batch_size=8", "train.steps=1"}).losses.front());
}

TEST_CASE("weights after Adam steps agree between layouts", "[quick][layouts]") {
  const Run one = train(with(llama(), {"train.micro_batch_size=8"}));
  for (const Sizes& sizes : {Sizes{.dp = 4}, Sizes{.dp = 2, .tp = 2, .pp = 2}}) {
    const Run run = train(llama(), sizes);
    for (const auto& [name, expected] : one.weights) {
      INFO(name << " on " << sizes.text());
      double largest = 0, worst = 0;
      for (size_t i = 0; i < expected.size(); ++i) {
        largest = std::max(largest, std::abs(expected[i]));
        worst = std::max(worst, std::abs(run.weights.at(name)[i] - expected[i]));
      }
      REQUIRE(worst <= 1e-8 * largest);
    }
  }
}

}  // namespace quintet::testing
