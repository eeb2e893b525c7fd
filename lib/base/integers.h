// Sizes and offsets are 64-bit; what must become narrower, or divide without a rest, is checked here.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "lib/base/error.h"

namespace quintet {

// value as To; a CheckFailure if To cannot hold it.
template <typename To, typename From>
constexpr To narrow(From value) {
  static_assert(std::is_integral_v<To> && std::is_integral_v<From>);
  const To narrowed = static_cast<To>(value);
  QUINTET_CHECK(static_cast<From>(narrowed) == value && (narrowed < To{}) == (value < From{}), "{} does not fit",
                value);
  return narrowed;
}

// a / b, which must leave no rest.
constexpr int64_t div_exact(int64_t a, int64_t b) {
  QUINTET_CHECK(b != 0 && a % b == 0, "{} is not a multiple of {}", a, b);
  return a / b;
}

// For a >= 0, b > 0.
constexpr int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

}  // namespace quintet
