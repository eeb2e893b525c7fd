#include "lib/base/exact_sum.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

using quintet::ExactSum;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kSmallest = std::numeric_limits<double>::denorm_min();
constexpr double kLargest = std::numeric_limits<double>::max();

uint64_t bits_of(double value) { return std::bit_cast<uint64_t>(value); }

double sum_of(const std::vector<double>& values) {
  ExactSum sum;
  for (const double value : values) sum.add(value);
  return sum.value();
}

// Normal mantissas with decimal exponents from the whole range given.
template <typename T>
std::vector<T> wild_values(size_t count, double lowest, double highest, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> mantissa;
  std::uniform_real_distribution<double> exponent(lowest, highest);
  std::vector<T> values(count);
  for (T& value : values) value = static_cast<T>(mantissa(generator) * std::pow(10.0, exponent(generator)));
  return values;
}

// Adds `values` in pieces of uneven sizes to several sums, which are merged last to first.
template <typename T, typename Add>
double in_pieces(const std::vector<T>& values, Add add) {
  std::vector<ExactSum> parts(3);
  size_t begin = 0, size = 1, part = 0;
  while (begin < values.size()) {
    const size_t count = std::min(size, values.size() - begin);
    add(parts[part], std::span<const T>(values).subspan(begin, count));
    begin += count;
    size = size * 3 % 2011 + 1;
    part = (part + 1) % parts.size();
  }
  ExactSum total;
  for (size_t i = parts.size(); i-- > 0;) total.add(parts[i]);
  return total.value();
}

}  // namespace

TEST_CASE("an exact sum is the rounded true sum", "[quick][exact_sum]") {
  CHECK(bits_of(sum_of({})) == bits_of(0.0));
  CHECK(sum_of({1.5}) == 1.5);
  CHECK(sum_of({-1.5, 0.25}) == -1.25);
  CHECK(sum_of({1e300, 1.0, -1e300}) == 1.0);
  CHECK(sum_of({1e300, 1e-300, -1e300}) == 1e-300);
  CHECK(sum_of({0.1, 0.2, -0.3}) == 0x1p-55);  // the true sum of these three doubles
  CHECK(sum_of({kSmallest, kSmallest}) == 2 * kSmallest);
  CHECK(sum_of({-kSmallest}) == -kSmallest);
  CHECK(sum_of({0x1p-1022, -kSmallest}) == 0x0.fffffffffffffp-1022);
  CHECK(sum_of({kLargest, -kLargest}) == 0.0);
}

TEST_CASE("an exact sum rounds once, to nearest, ties to even", "[quick][exact_sum]") {
  CHECK(sum_of({1.0, 0x1p-53}) == 1.0);
  CHECK(sum_of({1.0 + 0x1p-52, 0x1p-53}) == 1.0 + 0x1p-51);
  CHECK(sum_of({1.0, 0x1p-53, kSmallest}) == 1.0 + 0x1p-52);
  CHECK(sum_of({1.0, 0x1p-53, -kSmallest}) == 1.0);
  CHECK(sum_of({-1.0, -0x1p-53, -0x1p-200}) == -1.0 - 0x1p-52);
  CHECK(sum_of({0x1.fffffffffffffp0, 0x1p-53}) == 2.0);
}

TEST_CASE("an exact sum leaves the range of doubles and comes back", "[quick][exact_sum]") {
  CHECK(sum_of({kLargest, kLargest}) == kInfinity);
  CHECK(sum_of({-kLargest, -kLargest}) == -kInfinity);
  CHECK(sum_of({kLargest, kLargest, -kLargest}) == kLargest);
  CHECK(sum_of({kLargest, 0x1p969}) == kLargest);
  CHECK(sum_of({kLargest, 0x1p970}) == kInfinity);  // the tie rounds up to 2^1024
}

TEST_CASE("infinities and NaN are counted, not added", "[quick][exact_sum]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(sum_of({1.0, kInfinity}) == kInfinity);
  CHECK(sum_of({-kInfinity, kLargest}) == -kInfinity);
  CHECK(std::isnan(sum_of({kInfinity, -kInfinity})));
  CHECK(std::isnan(sum_of({nan, kInfinity})));

  // The same through spans, with finite values before and after in the same block.
  std::vector<double> values(3000, 1.0);
  values[1500] = kInfinity;
  ExactSum infinite;
  infinite.add(std::span<const double>(values));
  CHECK(infinite.value() == kInfinity);
  values[2999] = nan;
  ExactSum not_a_number;
  not_a_number.add_squares(std::span<const double>(values));
  CHECK(std::isnan(not_a_number.value()));
  std::vector<float> squares(100, -std::numeric_limits<float>::infinity());
  ExactSum of_squares;
  of_squares.add_squares(std::span<const float>(squares));
  CHECK(of_squares.value() == kInfinity);
}

TEST_CASE("order and partition do not change a bit of a sum over 600 decades", "[quick][exact_sum]") {
  std::vector<double> values = wild_values<double>(20000, -300, 300, 1);
  const std::vector<double> subnormal = wild_values<double>(500, -323, -305, 2);
  values.insert(values.end(), subnormal.begin(), subnormal.end());
  // Cancel the larger half, so that small values decide the result.
  for (size_t i = 0; i < 10000; ++i) {
    if (std::abs(values[i]) > 1e-100) values.push_back(-values[i]);
  }
  const double expected = sum_of(values);
  const auto add = [](ExactSum& sum, std::span<const double> part) { sum.add(part); };
  ExactSum whole;
  whole.add(std::span<const double>(values));
  CHECK(bits_of(whole.value()) == bits_of(expected));
  CHECK(bits_of(in_pieces(values, add)) == bits_of(expected));
  std::shuffle(values.begin(), values.end(), std::mt19937(3));
  CHECK(bits_of(in_pieces(values, add)) == bits_of(expected));
  std::reverse(values.begin(), values.end());
  CHECK(bits_of(in_pieces(values, add)) == bits_of(expected));
}

TEST_CASE("spans give the bits of single additions", "[quick][exact_sum]") {
  for (const auto& [lowest, highest] : {std::pair{-2.0, 0.0}, {-40.0, 38.0}, {-45.0, -37.0}, {-12.0, -2.0}}) {
    for (const size_t count : {1U, 7U, 1023U, 1024U, 1025U, 5000U}) {
      const std::vector<float> values = wild_values<float>(count, lowest, highest, 4);
      ExactSum one_by_one, squares_one_by_one, span, squares;
      for (const float value : values) {
        one_by_one.add(static_cast<double>(value));
        squares_one_by_one.add(static_cast<double>(value) * static_cast<double>(value));
      }
      span.add(std::span<const float>(values));
      squares.add_squares(std::span<const float>(values));
      CHECK(bits_of(span.value()) == bits_of(one_by_one.value()));
      CHECK(bits_of(squares.value()) == bits_of(squares_one_by_one.value()));
      CHECK(bits_of(in_pieces(values, [](ExactSum& sum, std::span<const float> part) { sum.add_squares(part); })) ==
            bits_of(squares_one_by_one.value()));
    }
  }
}

TEST_CASE("squares of doubles are rounded one by one, whatever their size", "[quick][exact_sum]") {
  for (const auto& [lowest, highest] : {std::pair{-3.0, 3.0}, {-170.0, -150.0}, {140.0, 160.0}, {-300.0, 150.0}}) {
    const std::vector<double> values = wild_values<double>(3000, lowest, highest, 5);
    ExactSum expected, sum;
    for (const double value : values) expected.add(value * value);
    sum.add_squares(std::span<const double>(values));
    CHECK(bits_of(sum.value()) == bits_of(expected.value()));
  }
}

TEST_CASE("integer sums of normalised words merge sums", "[quick][exact_sum]") {
  const std::vector<double> values = wild_values<double>(4096, -200, 200, 6);
  std::array<int64_t, ExactSum::kWords> words{};
  for (size_t rank = 0; rank < 8; ++rank) {
    ExactSum part;
    part.add(std::span<const double>(values).subspan(rank * 512, 512));
    part.normalise();
    for (size_t i = 0; i < words.size(); ++i) {
      REQUIRE(std::abs(part.words()[i]) < int64_t{1} << 32);
      words[i] += part.words()[i];
    }
  }
  ExactSum merged;
  std::copy(words.begin(), words.end(), merged.words().begin());
  CHECK(bits_of(merged.value()) == bits_of(sum_of(values)));
}

TEST_CASE("a sum of a negative total normalises and keeps its value", "[quick][exact_sum]") {
  ExactSum sum;
  for (int i = 0; i < 1000; ++i) sum.add(-1e10 / 3.0);
  const double before = sum.value();
  sum.normalise();
  CHECK(bits_of(sum.value()) == bits_of(before));
  sum.add(5e12);
  sum.add(-before);
  CHECK(sum.value() == sum_of({5e12}));
}

TEST_CASE("more additions than a word has room for carry in time", "[full][exact_sum]") {
  // Each addition puts 2^32 - 1 into one word. The true sum is n 2^21 - n 2^-32, and n 2^-32 rounds to 1.
  const int64_t n = (int64_t{1} << 31) + (int64_t{1} << 12);
  ExactSum sum;
  for (int64_t i = 0; i < n; ++i) sum.add(0x1.fffffffffffffp20);
  CHECK(sum.value() == static_cast<double>(n) * 0x1p21 - 1);
}
