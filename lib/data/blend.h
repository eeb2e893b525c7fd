// Which entry of a weighted list each sample comes from: ordinal n goes to the entry with the largest
// weight_i * max(n, 1) - drawn_i, where drawn_i is how many it got before n; the lowest index on ties.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace quintet::data {

class Blend {
 public:
  struct Draw {
    int64_t entry = 0;
    int64_t ordinal = 0;  // the entry's own
  };

  // Weights are normalised to sum 1; an entry of weight 0 is never drawn. Throws Error(config), naming `key`, for a
  // weight that is negative or not finite and if none is positive.
  Blend(const std::string& key, std::vector<double> weights);

  // Walking upwards costs O(entries) a step. A jump replays from the nearest stored counts at or before n, of which a
  // bounded number is kept, evenly spaced. One thread at a time.
  Draw at(int64_t n);

  // The normalised weights.
  const std::vector<double>& shares() const { return shares_; }

 private:
  int64_t pick() const;
  void rewind_to(int64_t n);
  void store_counts();

  std::vector<double> shares_;
  std::vector<int64_t> drawn_;  // before position_
  int64_t position_ = 0;
  std::vector<std::vector<int64_t>> stored_;  // stored_[k]: counts before ordinal k * spacing_
  int64_t spacing_ = 4096;
};

}  // namespace quintet::data
