#include "lib/base/random.h"

#include <cmath>
#include <numbers>

namespace quintet {
namespace {
// 53 bits as a number in (0, 1], so that its logarithm is finite.
double uniform(uint32_t high, uint32_t low) {
  const uint64_t bits = ((uint64_t{high} << 32) | low) >> 11;
  return static_cast<double>(bits + 1) * 0x1.0p-53;
}
}  // namespace

double normal(uint64_t seed, uint64_t index, uint64_t stream) {
  const PhiloxBlock block = philox(seed, index, stream);
  const double radius = std::sqrt(-2.0 * std::log(uniform(block[0], block[1])));
  return radius * std::cos(2.0 * std::numbers::pi * uniform(block[2], block[3]));
}

}  // namespace quintet
