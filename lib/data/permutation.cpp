#include "lib/data/permutation.h"

#include <algorithm>
#include <bit>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/base/random.h"

namespace quintet::data {
namespace {
// Four make a pseudo-random permutation of large domains; small ones need more to mix.
constexpr uint64_t kRounds = 8;
}  // namespace

Permutation::Permutation(int64_t size, uint64_t seed, int64_t epoch, int64_t source)
    : size_(size), seed_(seed), stream_(stream_of("shuffle", fmt::format("source.{}.epoch.{}", source, epoch))) {
  QUINTET_CHECK(size >= 1 && epoch >= 0 && source >= 0, "size {}, epoch {}, source {}", size, epoch, source);
  const int bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(size - 1)));
  half_bits_ = std::max(1, (bits + 1) / 2);
}

uint64_t Permutation::encrypt(uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_, right = value & mask;
  for (uint64_t round = 0; round < kRounds; ++round) {
    // A half has at most 32 bits, so that round and half fit one index.
    const uint64_t mixed = left ^ (philox(seed_, (round << 32) | right, stream_)[0] & mask);
    left = right;
    right = mixed;
  }
  return (left << half_bits_) | right;
}

int64_t Permutation::operator()(int64_t place) const {
  QUINTET_CHECK(place >= 0 && place < size_, "place {} of {}", place, size_);
  uint64_t value = static_cast<uint64_t>(place);
  do value = encrypt(value);
  while (value >= static_cast<uint64_t>(size_));
  return static_cast<int64_t>(value);
}

}  // namespace quintet::data
