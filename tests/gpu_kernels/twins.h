// Operands for a kernel and its twin on the CPU, and how near their results must be.
#pragma once

#include <catch2/catch.hpp>

#include <cmath>
#include <cstdint>
#include <vector>

#include "lib/base/dtype.h"
#include "lib/base/random.h"
#include "tests/support/device_memory.h"

namespace quintet::testing {

// Standard normal values times `scale`, rounded to T.
template <typename T>
std::vector<T> random_values(int64_t count, uint64_t seed, double scale = 1) {
  std::vector<T> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = T(static_cast<float>(scale * normal(seed, i, 0)));
  return values;
}

// For the twin, which computes in fp32.
template <typename T>
std::vector<float> widened(const std::vector<T>& values) {
  return std::vector<float>(values.begin(), values.end());
}

// As a store to T rounds.
template <typename T>
std::vector<float> rounded(std::vector<float> values) {
  for (float& value : values) value = static_cast<float>(T(value));
  return values;
}

// |got - expected| <= tolerance * max(1, |expected|), and in bf16 one rounding of the result (2^-8 of it) on top.
template <typename T>
void require_near(const std::vector<T>& got, const std::vector<float>& expected, double tolerance) {
  REQUIRE(got.size() == expected.size());
  const double rounding = sizeof(T) == 2 ? 0x1p-8 : 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const auto value = static_cast<double>(static_cast<float>(got[i])), right = static_cast<double>(expected[i]);
    const double bound = tolerance * std::fmax(1.0, std::abs(right)) + rounding * std::abs(right);
    if (std::abs(value - right) <= bound) continue;
    FAIL("element " << i << " is " << value << ", its twin says " << right);
  }
}

// Bit for bit, where T is what the twin computes in or the values are already rounded.
template <typename T>
void require_equal(const std::vector<T>& got, const std::vector<float>& expected) {
  REQUIRE(got.size() == expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (static_cast<float>(got[i]) == expected[i]) continue;
    FAIL("element " << i << " is " << static_cast<float>(got[i]) << ", its twin says " << expected[i]);
  }
}

}  // namespace quintet::testing
