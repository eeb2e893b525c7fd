#include "lib/base/dtype.h"

#include <catch2/catch.hpp>

#include <cmath>
#include <limits>

using namespace quintet;

TEST_CASE("bf16 rounds to nearest even", "[quick][dtype]") {
  const auto rounded = [](float value) { return static_cast<float>(bfloat16(value)); };
  CHECK(rounded(1.0F) == 1.0F);
  CHECK(rounded(1.0F + 0x1p-8F) == 1.0F);                 // a tie, down to even
  CHECK(rounded(1.0F + 0x3p-8F) == 1.0F + 0x1p-6F);       // a tie, up to even
  CHECK(rounded(1.0F + 0x1.0002p-8F) == 1.0F + 0x1p-7F);  // just above a tie
  CHECK(rounded(-1.0F - 0x1.8p-8F) == -1.0F - 0x1p-7F);
  CHECK(rounded(0x1p-133F) == 0x1p-133F);  // the smallest subnormal
  CHECK(std::signbit(rounded(-0.0F)));
}

TEST_CASE("bf16 overflows to infinity and keeps NaN", "[quick][dtype]") {
  const auto rounded = [](float value) { return static_cast<float>(bfloat16(value)); };
  CHECK(std::isinf(rounded(std::numeric_limits<float>::max())));
  CHECK(rounded(-std::numeric_limits<float>::infinity()) == -std::numeric_limits<float>::infinity());
  CHECK(std::isnan(rounded(std::numeric_limits<float>::quiet_NaN())));
  CHECK(std::isnan(rounded(std::bit_cast<float>(0x7f800001U))));  // a NaN whose upper half alone is infinity
  CHECK(std::isnan(rounded(std::bit_cast<float>(0xffffffffU))));
}

TEST_CASE("a dtype knows its size, name and C++ type", "[quick][dtype]") {
  for (const DType dtype : {DType::fp64, DType::fp32, DType::bf16, DType::i64, DType::i32, DType::u8}) {
    visit_dtype(dtype, [&]<typename T>() {
      CHECK(size_of(dtype) == static_cast<int64_t>(sizeof(T)));
      CHECK(kDTypeOf<T> == dtype);
    });
  }
  CHECK(name_of(DType::bf16) == "bf16");
  CHECK(visit_compute_type(DType::fp64, []<typename T>() { return sizeof(T); }) == 8);
  CHECK_THROWS_AS(visit_compute_type(DType::bf16, []<typename T>() { return sizeof(T); }), CheckFailure);
}
