// bf16: weights and activations are rounded, what adds up is not. Layouts may differ by roundings, no more than bf16
// itself differs from fp32.
#include <cmath>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include <fmt/core.h>

#include "lib/base/dtype.h"
#include "tests/support/training_run.h"

namespace quintet::testing {
namespace {

using Overrides = std::vector<std::string>;

const Overrides kBf16 = {"precision.compute=bf16", "train.steps=2"};

bool is_bf16(double value) {
  return static_cast<double>(static_cast<float>(bfloat16(static_cast<float>(value)))) == value;
}

}  // namespace

TEST_CASE("in bf16 the layout changes no more than bf16 itself does", "[quick][layouts][bf16]") {
  for (const Overrides& model : {gpt2(), llama(), qwen3()}) {
    const Overrides base = with(model, kBf16);
    const Run one = train(base), exact = train(with(base, {"precision.compute=fp32"}));
    for (const Sizes& sizes : {Sizes{.dp = 2}, Sizes{.tp = 2}, Sizes{.pp = 2}, Sizes{.dp = 2, .tp = 2, .pp = 2}})
      require_within_roundings(train(base, sizes), one, exact);
    require_within_roundings(train(with(base, {"parallel.sequence_parallel=false"}), Sizes{.tp = 4}), one, exact);
  }
}

TEST_CASE("in bf16 context ranks change no more than bf16 itself does", "[quick][layouts][context][bf16]") {
  for (const Overrides& model : {gpt2(), qwen3()}) {
    const Overrides base = with(model, kBf16);
    const Run one = train(base), exact = train(with(base, {"precision.compute=fp32"}));
    for (const char* method : {"ring", "all_gather", "ulysses"})
      for (const Sizes& sizes : {Sizes{.cp = 4}, Sizes{.tp = 2, .pp = 2, .cp = 2}}) {
        INFO(method << ", " << sizes.text());
        require_within_roundings(train(with(base, {fmt::format("parallel.context.method={}", method)}), sizes), one,
                                 exact);
      }
  }
}

TEST_CASE("bf16 follows fp32", "[quick][bf16]") {
  for (const Overrides& model : {gpt2(), llama(), qwen3()}) {
    const Overrides base = with(model, {"train.steps=5", "optimizer.learning_rate=3.0e-3"});
    const Run exact = train(with(base, {"precision.compute=fp32"}));
    const Run run = train(with(base, {"precision.compute=bf16"}));
    for (size_t step = 0; step < exact.losses.size(); ++step)
      REQUIRE(std::abs(run.losses[step] - exact.losses[step]) <= 0.01 * exact.losses[step]);
    REQUIRE(run.losses.back() < run.losses.front());
  }
}

TEST_CASE("bf16 weights are the roundings of the same initial weights", "[quick][bf16][bitwise]") {
  const Overrides base = {"train.steps=1"};
  const Run exact = train(with(base, {"precision.compute=fp32"}));
  const Run run = train(with(base, {"precision.compute=bf16"}), Sizes{.tp = 2, .pp = 2});
  for (const auto& [name, values] : exact.initial_weights)
    for (size_t i = 0; i < values.size(); ++i) {
      const auto rounded = static_cast<float>(bfloat16(static_cast<float>(values[i])));
      REQUIRE(run.initial_weights.at(name)[i] == static_cast<double>(rounded));
    }
}

TEST_CASE("master weights keep what bf16 cannot", "[quick][bf16]") {
  // A step of 1e-6 is a hundredth of the distance between neighbouring bf16 weights. It moves the few whose master
  // stands next to a rounding's edge; many steps add up. Masters that start as rounded weights stand at no edge.
  const Overrides base = with(kBf16, {"optimizer.learning_rate=1.0e-6", "optimizer.weight_decay=0"});
  const Run first = train(with(base, {"train.steps=1"})), last = train(with(base, {"train.steps=30"}));
  double weights = 0, moved_at_once = 0, moved = 0;
  for (const auto& [name, values] : first.initial_weights) {
    if (name.find("mlp.up.weight") == std::string::npos) continue;
    weights += static_cast<double>(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      REQUIRE(is_bf16(last.weights.at(name)[i]));
      moved_at_once += first.weights.at(name)[i] != values[i] ? 1 : 0;
      moved += last.weights.at(name)[i] != values[i] ? 1 : 0;
    }
  }
  INFO(moved_at_once << " of " << weights << " weights moved at the first step, " << moved << " after all");
  REQUIRE(moved_at_once > 0.03 * weights);
  REQUIRE(moved_at_once < 0.1 * weights);
  REQUIRE(moved > 5 * moved_at_once);
}

TEST_CASE("what SPEC calls bitwise is bitwise in bf16", "[quick][layouts][bf16][bitwise]") {
  const Overrides base = with(llama(), with(kBf16, {"model.dropout=0.1", "parallel.zero.bucket_mb=0.05"}));
  const Sizes sizes{.dp = 2, .tp = 2, .pp = 2};
  const Run run = train(base, sizes);
  for (const char* other : {"parallel.zero.stage=0", "parallel.zero.overlap=false", "parallel.pipeline.schedule=gpipe"})
    require_same_bits(train(with(base, {other}), sizes), run);
}

TEST_CASE("gradients kept in bf16 are rounded, and near those kept in fp32", "[quick][bf16]") {
  const Run exact = train(kBf16, Sizes{.dp = 2});
  const Run run = train(with(kBf16, {"precision.gradients=bf16"}), Sizes{.dp = 2});
  double difference = 0, size = 0;
  for (const auto& [name, values] : run.gradients)
    for (size_t i = 0; i < values.size(); ++i) {
      REQUIRE(is_bf16(values[i]));
      difference += std::pow(values[i] - exact.gradients.at(name)[i], 2);
      size += std::pow(values[i], 2);
    }
  REQUIRE(difference > 0);
  REQUIRE(std::sqrt(difference / size) < 0.02);
}

}  // namespace quintet::testing
