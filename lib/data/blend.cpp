#include "lib/data/blend.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "lib/base/error.h"

namespace quintet::data {
namespace {
// Past so many stored counts every other one is dropped and the spacing doubles.
constexpr size_t kMaxStored = 1024;
}  // namespace

Blend::Blend(const std::string& key, std::vector<double> weights) : shares_(std::move(weights)) {
  double sum = 0;
  for (size_t i = 0; i < shares_.size(); ++i) {
    if (!std::isfinite(shares_[i]) || shares_[i] < 0)
      fail(ExitCode::config, "{}[{}].weight: {} is not a weight; give a finite number of at least 0", key, i,
           shares_[i]);
    sum += shares_[i];
  }
  if (!(sum > 0) || !std::isfinite(sum))
    fail(ExitCode::config, "{}: the weights sum to {}; give at least one entry a positive weight", key, sum);
  for (double& share : shares_) share /= sum;
  drawn_.assign(shares_.size(), 0);
  stored_.push_back(drawn_);
}

Blend::Draw Blend::at(int64_t n) {
  QUINTET_CHECK(n >= 0, "ordinal {}", n);
  rewind_to(n);
  while (position_ < n) {
    ++drawn_[static_cast<size_t>(pick())];
    ++position_;
    store_counts();
  }
  const int64_t entry = pick();
  return {.entry = entry, .ordinal = drawn_[static_cast<size_t>(entry)]};
}

int64_t Blend::pick() const {
  const double n = static_cast<double>(std::max<int64_t>(position_, 1));
  int64_t best = -1;
  double best_error = 0;
  for (size_t i = 0; i < shares_.size(); ++i) {
    if (shares_[i] == 0) continue;
    const double error = shares_[i] * n - static_cast<double>(drawn_[i]);
    if (best >= 0 && error <= best_error) continue;
    best = static_cast<int64_t>(i);
    best_error = error;
  }
  return best;
}

// To the latest known counts at or before n: the cursor's own or stored ones.
void Blend::rewind_to(int64_t n) {
  const int64_t k = std::min(n / spacing_, static_cast<int64_t>(stored_.size()) - 1);
  if (position_ <= n && position_ >= k * spacing_) return;
  position_ = k * spacing_;
  drawn_ = stored_[static_cast<size_t>(k)];
}

void Blend::store_counts() {
  if (position_ != static_cast<int64_t>(stored_.size()) * spacing_) return;
  stored_.push_back(drawn_);
  if (stored_.size() <= kMaxStored) return;
  for (size_t k = 1; 2 * k < stored_.size(); ++k) stored_[k] = std::move(stored_[2 * k]);
  stored_.resize((stored_.size() + 1) / 2);
  spacing_ *= 2;
}

}  // namespace quintet::data
