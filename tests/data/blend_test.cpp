#include "lib/data/blend.h"

#include <cmath>
#include <limits>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/data/fixtures.h"

namespace quintet::data {
namespace {

std::vector<int64_t> counts(const std::vector<double>& weights, int64_t samples) {
  Blend blend("data.train", weights);
  std::vector<int64_t> drawn(weights.size());
  for (int64_t n = 0; n < samples; ++n) {
    const Blend::Draw draw = blend.at(n);
    // An entry's own ordinals run without a gap.
    REQUIRE(draw.ordinal == drawn[static_cast<size_t>(draw.entry)]++);
  }
  return drawn;
}

TEST_CASE("a blend draws by the greedy rule", "[quick][blend]") {
  using Counts = std::vector<int64_t>;
  CHECK(counts({0.001, 0.999}, 2) == Counts{1, 1});
  CHECK(counts({0.001, 0.999}, 10) == Counts{1, 9});
  CHECK(counts({0.001, 0.999}, 2000) == Counts{2, 1998});
  CHECK(counts({0.5, 0.5}, 100) == Counts{50, 50});
  CHECK(counts({0.7, 0.2, 0.1}, 10) == Counts{7, 2, 1});
  CHECK(counts({2.1, 0.6, 0.3}, 10) == Counts{7, 2, 1});
  CHECK(counts({3}, 10) == Counts{10});
}

TEST_CASE("the first draws of a blend, by hand", "[quick][blend]") {
  // n = 0: 0.75 > 0.25; n = 1: 0.75-1 < 0.25; n = 2: 1.5-1 > 0.5-1; n = 4: 3-3 = 1-1, a tie; n = 5: 3.75-4 < 1.25-1.
  Blend blend("data.train", {0.75, 0.25});
  std::vector<int64_t> entries;
  for (int64_t n = 0; n < 9; ++n) entries.push_back(blend.at(n).entry);
  CHECK(entries == std::vector<int64_t>{0, 1, 0, 0, 0, 1, 0, 0, 0});
}

TEST_CASE("ties go to the lowest index", "[quick][blend]") {
  Blend blend("data.train", {1, 1, 1, 1});
  for (int64_t n = 0; n < 16; ++n) CHECK(blend.at(n).entry == n % 4);
}

TEST_CASE("an entry of weight 0 is never drawn, not even on a tie", "[quick][blend]") {
  CHECK(counts({0, 1}, 1000) == std::vector<int64_t>{0, 1000});
  CHECK(counts({0, 0.3, 0, 0.7}, 1000) == std::vector<int64_t>{0, 300, 0, 700});
}

TEST_CASE("a blend answers for any ordinal as if walked from 0", "[quick][blend]") {
  const std::vector<double> weights = {0.61, 0.05, 0.34};
  std::vector<Blend::Draw> walked;
  Blend walker("data.train", weights);
  for (int64_t n = 0; n < 20000; ++n) walked.push_back(walker.at(n));
  Blend jumper("data.train", weights);
  const auto check = [&](Blend& blend, int64_t n) {
    const Blend::Draw draw = blend.at(n);
    INFO("ordinal " << n);
    REQUIRE(draw.entry == walked[static_cast<size_t>(n)].entry);
    REQUIRE(draw.ordinal == walked[static_cast<size_t>(n)].ordinal);
  };
  int64_t n = 12345;
  for (int i = 0; i < 200; ++i) {
    check(jumper, n);
    check(jumper, n);
    check(walker, n);
    n = (n * 7919 + 13) % 20000;
  }
  for (const int64_t edge : {19999, 0, 4095, 4096, 4097, 8191, 8192, 1}) check(jumper, edge);
}

TEST_CASE("a blend keeps answering after its stored counts were thinned", "[quick][blend]") {
  // More than 1024 * 4096 ordinals; with equal weights the answer is known.
  constexpr int64_t kFar = 9'500'001;
  Blend blend("data.train", {1, 1});
  for (const int64_t n : {kFar, int64_t{5'000'000}, int64_t{4'194'303}, int64_t{8'388'609}, int64_t{77}, kFar + 1}) {
    CHECK(blend.at(n).entry == n % 2);
    CHECK(blend.at(n).ordinal == n / 2);
  }
}

TEST_CASE("weights that are none are refused by name", "[quick][blend][errors]") {
  const auto refusal = [](const std::vector<double>& weights) {
    return refusal_of([&] { Blend("data.train", weights); });
  };
  CHECK(refusal({1, -0.5}).code == ExitCode::config);
  CHECK(refusal({1, -0.5}).names("data.train[1].weight: -0.5"));
  CHECK(refusal({std::nan(""), 1}).names("data.train[0].weight: nan"));
  CHECK(refusal({1, 1, std::numeric_limits<double>::infinity()}).names("data.train[2].weight: inf"));
  CHECK(refusal({0, 0}).code == ExitCode::config);
  CHECK(refusal({0, 0}).names("the weights sum to 0"));
}

}  // namespace
}  // namespace quintet::data
