#include "lib/base/random.h"

#include <catch2/catch.hpp>

#include <cmath>

using quintet::philox;
using quintet::PhiloxBlock;
using quintet::stream_of;

TEST_CASE("Philox4x32-10 gives the published vectors", "[quick][random]") {
  CHECK(philox(0, 0, 0) == PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox(~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}) ==
        PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e) ==
        PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("streams differ by purpose and by name, also where their letters join alike", "[quick][random]") {
  CHECK(stream_of("init", "layers.0") != stream_of("dropout", "layers.0"));
  CHECK(stream_of("init", "layers.0") != stream_of("init", "layers.1"));
  CHECK(stream_of("in", "it") != stream_of("init", ""));
  CHECK(stream_of("init", "\xff") == 0x31d236da6f5cd742ULL);  // bytes are unsigned: fixed for all platforms
}

TEST_CASE("normal values have the moments of the normal distribution", "[quick][random]") {
  constexpr int kCount = 200000;
  double sum = 0, squares = 0, cubes = 0, fourths = 0;
  int beyond_two = 0;
  for (int i = 0; i < kCount; ++i) {
    const double x = quintet::normal(7, static_cast<uint64_t>(i), 11);
    REQUIRE(std::isfinite(x));
    sum += x;
    squares += x * x;
    cubes += x * x * x;
    fourths += x * x * x * x;
    beyond_two += std::abs(x) > 2 ? 1 : 0;
  }
  // Bounds are five standard errors.
  const double root = std::sqrt(static_cast<double>(kCount));
  CHECK(std::abs(sum / kCount) < 5 / root);
  CHECK(std::abs(squares / kCount - 1) < 5 * std::sqrt(2.0) / root);
  CHECK(std::abs(cubes / kCount) < 5 * std::sqrt(15.0) / root);
  CHECK(std::abs(fourths / kCount - 3) < 5 * std::sqrt(96.0) / root);
  CHECK(std::abs(static_cast<double>(beyond_two) / kCount - 0.0455) < 5 * 0.21 / root);
}

TEST_CASE("a normal value depends on seed, index and stream", "[quick][random]") {
  const double value = quintet::normal(1, 2, 3);
  CHECK(value == quintet::normal(1, 2, 3));
  CHECK(value != quintet::normal(2, 2, 3));
  CHECK(value != quintet::normal(1, 3, 3));
  CHECK(value != quintet::normal(1, 2, 4));
  CHECK(value != quintet::normal(1, 2 + (uint64_t{1} << 32), 3));
}
