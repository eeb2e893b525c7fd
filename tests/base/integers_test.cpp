#include "lib/base/integers.h"

#include <catch2/catch.hpp>

using namespace quintet;

TEST_CASE("narrowing keeps the value or fails", "[quick][integers]") {
  CHECK(narrow<int32_t>(int64_t{2147483647}) == 2147483647);
  CHECK(narrow<int32_t>(int64_t{-2147483648}) == std::numeric_limits<int32_t>::min());
  CHECK(narrow<uint8_t>(255) == 255);
  CHECK(narrow<int64_t>(uint64_t{5}) == 5);
  CHECK_THROWS_AS(narrow<int32_t>(int64_t{2147483648}), CheckFailure);
  CHECK_THROWS_AS(narrow<uint32_t>(int64_t{-1}), CheckFailure);
  CHECK_THROWS_AS(narrow<uint64_t>(int64_t{-1}), CheckFailure);
  CHECK_THROWS_AS(narrow<int64_t>(~uint64_t{0}), CheckFailure);
  CHECK_THROWS_AS(narrow<uint8_t>(256), CheckFailure);
}

TEST_CASE("exact division refuses a rest", "[quick][integers]") {
  CHECK(div_exact(12, 4) == 3);
  CHECK(div_exact(0, 4) == 0);
  CHECK_THROWS_AS(div_exact(13, 4), CheckFailure);
  CHECK_THROWS_AS(div_exact(13, 0), CheckFailure);
}

TEST_CASE("ceiling division and rounding up", "[quick][integers]") {
  CHECK(ceil_div(0, 3) == 0);
  CHECK(ceil_div(9, 3) == 3);
  CHECK(ceil_div(10, 3) == 4);
  CHECK(ceil_div(std::numeric_limits<int64_t>::max(), 2) == (int64_t{1} << 62));
  CHECK(round_up(0, 64) == 0);
  CHECK(round_up(1, 64) == 64);
  CHECK(round_up(64, 64) == 64);
}
