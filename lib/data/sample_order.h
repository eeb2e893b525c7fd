// From the ordinal of a sample to its source and window. Ordinals count from 0 over the whole run and are never reset;
// nothing here knows of ranks, steps or batches.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/data/blend.h"

namespace quintet::data {

// Windows of `sequence_length` inputs in a source of `tokens` tokens; window i is tokens [i*S, i*S + S], S inputs and S
// targets, so neighbours share a token.
constexpr int64_t window_count(int64_t tokens, int64_t sequence_length) {
  return tokens < 1 ? 0 : (tokens - 1) / sequence_length;
}

struct OrderOptions {
  std::string key = "data.train";     // the config key that errors name
  std::vector<int64_t> windows = {};  // of each source, at least 1
  std::vector<double> weights = {};   // of each source; empty where there is one source only
  uint64_t seed = 0;
  bool shuffle = true;
};

class SampleOrder {
 public:
  struct Place {
    int64_t source = 0;
    int64_t window = 0;
  };

  // Throws Error(config) for weights that Blend refuses.
  explicit SampleOrder(const OrderOptions& options);

  // Any ordinal; upwards is fast (see Blend). One thread at a time.
  Place at(int64_t ordinal);

  // The share of each source in the samples.
  std::vector<double> shares() const;

 private:
  std::vector<int64_t> windows_;
  std::optional<Blend> blend_;
  uint64_t seed_;
  bool shuffle_;
};

}  // namespace quintet::data
