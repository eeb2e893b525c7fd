// A keyed permutation of [0, size) in constant memory, any position at once: a Feistel network (Luby and Rackoff 1988)
// with Philox as round function over the smallest even power of two that holds size, walked along its cycles until it
// lands inside (Black and Rogaway 2002, "Ciphers with arbitrary finite domains").
#pragma once

#include <cstdint>

namespace quintet::data {

class Permutation {
 public:
  // The order of epoch `epoch` of source `source` under `seed`. size >= 1.
  Permutation(int64_t size, uint64_t seed, int64_t epoch, int64_t source);

  // Where place `place` of [0, size) goes; a bijection.
  int64_t operator()(int64_t place) const;

 private:
  uint64_t encrypt(uint64_t value) const;

  int64_t size_;
  uint64_t seed_;
  uint64_t stream_;
  int half_bits_;
};

}  // namespace quintet::data
