// Few of many combinations of choices: a covering array of strength two, picked greedily (Cohen et al. 1997).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace quintet::testing {

// One choice for each factor, counted from 0.
using Combination = std::vector<size_t>;

// Every combination where factor i has choices[i] choices.
std::vector<Combination> all_combinations(const std::vector<size_t>& choices);

// Combinations out of `possible` in which every pair of choices of two factors occurs that occurs in `possible`. The
// first ones hold the most new pairs; which of equals is taken, the seed decides.
std::vector<Combination> pairwise_cover(std::vector<Combination> possible, uint64_t seed);

}  // namespace quintet::testing
