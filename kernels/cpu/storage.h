// Types in memory and types of arithmetic: bf16 is widened to fp32 when read, and what is computed from it is rounded
// once, to nearest even, when stored.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "lib/base/dtype.h"

namespace quintet::kernels::cpu {

// What T is computed in: fp32 for bf16, itself otherwise.
template <typename T>
using Arithmetic = std::conditional_t<std::is_same_v<T, bfloat16>, float, T>;

// Exact.
inline float widen(bfloat16 value) { return static_cast<float>(value); }
inline float widen(float value) { return value; }
inline double widen(double value) { return value; }

// fp64 to bf16 through an fp32 rounded to odd, so that the second rounding does not round what the first rounded.
inline bfloat16 round_to_bfloat16(double value) {
  const float nearest = static_cast<float>(value);
  uint32_t bits = std::bit_cast<uint32_t>(nearest);
  const double back = static_cast<double>(nearest);
  if (back != value && std::isfinite(nearest)) {
    if (std::abs(back) > std::abs(value)) --bits;
    bits |= 1;
  }
  return bfloat16(std::bit_cast<float>(bits));
}

template <typename To, typename From>
inline To round_to(From value) {
  if constexpr (!std::is_same_v<To, bfloat16>) {
    return static_cast<To>(value);
  } else if constexpr (std::is_same_v<From, double>) {
    return round_to_bfloat16(value);
  } else {
    return bfloat16(value);
  }
}

}  // namespace quintet::kernels::cpu
