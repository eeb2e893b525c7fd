#include "tests/support/pairwise.h"

#include <algorithm>
#include <utility>

#include "lib/base/random.h"

namespace quintet::testing {
namespace {

// Pairs of two factors' choices as numbers, each choice of each factor being a place in a row of all choices.
class Pairs {
 public:
  explicit Pairs(const std::vector<Combination>& possible) : first_(possible.front().size() + 1) {
    std::vector<size_t> choices(possible.front().size());
    for (const Combination& combination : possible)
      for (size_t i = 0; i < choices.size(); ++i) choices[i] = std::max(choices[i], combination[i] + 1);
    for (size_t i = 0; i < choices.size(); ++i) first_[i + 1] = first_[i] + choices[i];
    wanted_.resize(first_.back() * first_.back());
    for (const Combination& combination : possible) set(combination, true);
  }

  // How many pairs of the combination are still wanted.
  size_t wanted(const Combination& combination) const {
    size_t count = 0;
    visit(combination, [&](size_t pair) { count += wanted_[pair] ? 1 : 0; });
    return count;
  }
  void set(const Combination& combination, bool wanted) {
    visit(combination, [&](size_t pair) { wanted_[pair] = wanted; });
  }

 private:
  template <typename Body>
  void visit(const Combination& combination, const Body& body) const {
    for (size_t i = 0; i < combination.size(); ++i)
      for (size_t j = i + 1; j < combination.size(); ++j)
        body((first_[i] + combination[i]) * first_.back() + first_[j] + combination[j]);
  }
  std::vector<size_t> first_;  // place of each factor's first choice
  std::vector<bool> wanted_;
};

}  // namespace

std::vector<Combination> all_combinations(const std::vector<size_t>& choices) {
  std::vector<Combination> all = {{}};
  for (const size_t count : choices) {
    std::vector<Combination> longer;
    for (const Combination& combination : all)
      for (size_t choice = 0; choice < count; ++choice) {
        longer.push_back(combination);
        longer.back().push_back(choice);
      }
    all = std::move(longer);
  }
  return all;
}

std::vector<Combination> pairwise_cover(std::vector<Combination> possible, uint64_t seed) {
  std::vector<Combination> cover;
  if (possible.empty()) return cover;
  for (size_t i = possible.size(); i > 1; --i) std::swap(possible[i - 1], possible[philox(seed, i, 0)[0] % i]);
  Pairs pairs(possible);
  while (true) {
    size_t most = 0;
    const Combination* best = nullptr;
    for (const Combination& combination : possible) {
      const size_t wanted = pairs.wanted(combination);
      if (wanted <= most) continue;
      most = wanted;
      best = &combination;
    }
    if (best == nullptr) return cover;
    cover.push_back(*best);
    pairs.set(*best, false);
  }
}

}  // namespace quintet::testing
