#include "tests/support/pairwise.h"

#include <algorithm>
#include <set>
#include <tuple>

#include <catch2/catch.hpp>

namespace quintet::testing {
namespace {

using Pair = std::tuple<size_t, size_t, size_t, size_t>;  // factor, choice, factor, choice

std::set<Pair> pairs_of(const std::vector<Combination>& combinations) {
  std::set<Pair> pairs;
  for (const Combination& one : combinations)
    for (size_t i = 0; i < one.size(); ++i)
      for (size_t j = i + 1; j < one.size(); ++j) pairs.insert({i, one[i], j, one[j]});
  return pairs;
}

}  // namespace

TEST_CASE("all combinations of choices are each there once", "[quick][pairwise]") {
  const std::vector<Combination> all = all_combinations({2, 3, 4});
  REQUIRE(all.size() == 24);
  REQUIRE(std::set<Combination>(all.begin(), all.end()).size() == 24);
  REQUIRE(*std::max_element(all.begin(), all.end()) == Combination{1, 2, 3});
}

TEST_CASE("a pairwise cover holds every pair with few combinations, for every seed", "[quick][pairwise]") {
  const std::vector<Combination> all = all_combinations({3, 3, 2, 4, 2, 2});
  std::set<std::vector<Combination>> covers;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    const std::vector<Combination> cover = pairwise_cover(all, seed);
    REQUIRE(pairs_of(cover) == pairs_of(all));
    REQUIRE(cover.size() >= 12);  // 3 * 4 pairs of two factors
    REQUIRE(cover.size() <= 24);
    REQUIRE(cover == pairwise_cover(all, seed));
    covers.insert(cover);
  }
  REQUIRE(covers.size() > 1);
}

TEST_CASE("a pairwise cover takes possible combinations alone", "[quick][pairwise]") {
  std::vector<Combination> possible = all_combinations({3, 3, 3});
  const auto too_much = [](const Combination& one) { return one[0] + one[1] + one[2] > 3; };
  possible.erase(std::remove_if(possible.begin(), possible.end(), too_much), possible.end());
  const std::vector<Combination> cover = pairwise_cover(possible, 1);
  REQUIRE(pairs_of(cover) == pairs_of(possible));
  REQUIRE(std::none_of(cover.begin(), cover.end(), too_much));
  REQUIRE(pairwise_cover({}, 1).empty());
}

}  // namespace quintet::testing
