// A dropout mask as kernels use it.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/dropout.h"
#include "lib/base/random.h"

namespace quintet::kernels::cuda {

struct DropoutKey {
  uint64_t seed, stream;
  const int64_t* rows;
  uint32_t last_dropped;  // words above it keep their element
  float scale;
  bool active;
};

inline DropoutKey key_of(const DropoutMask& mask) {
  if (mask.probability == 0) return {};
  // word >= p 2^32 for the integer word means word > ceil(p 2^32) - 1, which fits 32 bits for 0 < p < 1.
  const auto last = static_cast<uint32_t>(static_cast<uint64_t>(std::ceil(mask.probability * 0x1p32)) - 1);
  return {mask.seed, mask.stream, mask.rows, last, static_cast<float>(1.0 / (1.0 - mask.probability)), true};
}

// values[k] of elements index + k are scaled or dropped. index is a multiple of 4 unless N is 1.
template <int N>
__device__ __forceinline__ void drop(const DropoutKey& key, uint64_t index, float (&values)[N]) {
  const auto masked = [&](uint32_t word, float value) { return word > key.last_dropped ? value * key.scale : 0.0F; };
  if constexpr (N == 1) {
    const PhiloxBlock words = philox(key.seed, index / 4, key.stream);
    const uint32_t low = index % 2 == 0 ? words[0] : words[1], high = index % 2 == 0 ? words[2] : words[3];
    values[0] = masked(index % 4 < 2 ? low : high, values[0]);
  } else {
#pragma unroll
    for (int block = 0; block < N / 4; ++block) {
      const PhiloxBlock words = philox(key.seed, index / 4 + static_cast<unsigned>(block), key.stream);
#pragma unroll
      for (int k = 0; k < 4; ++k) values[4 * block + k] = masked(words[static_cast<size_t>(k)], values[4 * block + k]);
    }
  }
}

}  // namespace quintet::kernels::cuda
