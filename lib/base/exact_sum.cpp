#include "lib/base/exact_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

namespace quintet {
namespace {

constexpr int kDigits = ExactSum::kWords - 3;
constexpr int kNan = kDigits, kPositiveInfinity = kDigits + 1, kNegativeInfinity = kDigits + 2;
constexpr int kLowestExponent = -1088;  // of the lowest bit of word 0
constexpr int64_t kDigitMask = 0xffffffff;
// Each addition changes a word by less than 2^32, so the words hold this many before carries must move on.
constexpr int64_t kMaxPending = int64_t{1} << 30;

// Moves carries upwards: digits below the last end in [0, 2^32), the last keeps the sign.
void carry(std::span<int64_t> digits) {
  for (int i = 0; i + 1 < kDigits; ++i) {
    digits[i + 1] += digits[i] >> 32;
    digits[i] &= kDigitMask;
  }
}

// Many values at once (Rump, Ogita, Oishi 2008, "Accurate floating-point summation part I", ExtractVector): with
// sigma a power of two at least 2^kMargin times above all values of a block, high = (x + sigma) - sigma is a multiple
// of 2^-53 sigma, the sum of a block's high parts is exact in fp64, and so is the rest x - high, which is below
// 2^-kStep of the bound. Three levels run in one pass; what is left over, if anything, goes round again.
constexpr int kBlock = 1024;
constexpr int kMargin = 11;  // 2^kMargin >= kBlock + 2
constexpr int kStep = 53 - kMargin;

struct Levels {
  double first = 0, second = 0, third = 0;
  bool rest = false;
};

template <bool kSquare, typename T>
Levels extract(const T* values, int count, int bound, double* rest) {
  const double sigma1 = std::ldexp(1.0, bound + kMargin);
  const double sigma2 = std::ldexp(1.0, bound + kMargin - kStep);
  const double sigma3 = std::ldexp(1.0, bound + kMargin - 2 * kStep);
  double sum1 = 0, sum2 = 0, sum3 = 0;
  int64_t rest_bits = 0;
#pragma omp simd reduction(+ : sum1, sum2, sum3) reduction(| : rest_bits)
  for (int i = 0; i < count; ++i) {
    const double x = static_cast<double>(values[i]);
    const double value = kSquare ? x * x : x;
    const double high1 = (value + sigma1) - sigma1;
    const double rest1 = value - high1;
    const double high2 = (rest1 + sigma2) - sigma2;
    const double rest2 = rest1 - high2;
    const double high3 = (rest2 + sigma3) - sigma3;
    const double rest3 = rest2 - high3;
    sum1 += high1;
    sum2 += high2;
    sum3 += high3;
    rest[i] = rest3;
    rest_bits |= std::bit_cast<int64_t>(rest3) & std::numeric_limits<int64_t>::max();
  }
  return {sum1, sum2, sum3, rest_bits != 0};
}

// The smallest b with |x| < 2^b for all x that is known from the exponent fields; kUnbounded with infinities or NaN.
constexpr int kUnbounded = 1 << 20;
template <typename T>
int magnitude_bound(const T* values, int count) {
  using Bits = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
  constexpr int kMantissa = std::numeric_limits<T>::digits - 1;
  Bits largest = 0;
#pragma omp simd reduction(max : largest)
  for (int i = 0; i < count; ++i) {
    const Bits bits = std::bit_cast<Bits>(values[i]) & std::numeric_limits<Bits>::max();
    largest = std::max(largest, bits);
  }
  const int exponent = static_cast<int>(largest >> kMantissa);
  constexpr int kSpecial = 2 * std::numeric_limits<T>::max_exponent - 1;
  return exponent == kSpecial ? kUnbounded : exponent - (std::numeric_limits<T>::max_exponent - 2);
}

template <bool kSquare, typename T>
void add_values(ExactSum& sum, std::span<const T> values) {
  alignas(64) double rest[kBlock];
  for (size_t begin = 0; begin < values.size(); begin += kBlock) {
    const T* block = values.data() + begin;
    const int count = static_cast<int>(std::min<size_t>(kBlock, values.size() - begin));
    int bound = magnitude_bound(block, count) * (kSquare ? 2 : 1);
    if (bound + kMargin >= std::numeric_limits<double>::max_exponent) {
      for (int i = 0; i < count; ++i) {
        const double x = static_cast<double>(block[i]);
        sum.add(kSquare ? x * x : x);
      }
      continue;
    }
    Levels levels = extract<kSquare>(block, count, bound, rest);
    while (true) {
      sum.add(levels.first);
      sum.add(levels.second);
      sum.add(levels.third);
      if (!levels.rest) break;
      bound -= 3 * kStep;
      levels = extract<false>(rest, count, bound, rest);
    }
  }
}

}  // namespace

void ExactSum::add(double value) {
  const uint64_t bits = std::bit_cast<uint64_t>(value);
  const int exponent = static_cast<int>((bits >> 52) & 0x7ff);
  const bool negative = bits >> 63 != 0;
  uint64_t mantissa = bits & ((uint64_t{1} << 52) - 1);
  if (exponent == 0x7ff) {
    ++words_[mantissa != 0 ? kNan : negative ? kNegativeInfinity : kPositiveInfinity];
    return;
  }
  if (pending_ >= kMaxPending) normalise();
  ++pending_;
  if (exponent != 0) mantissa |= uint64_t{1} << 52;
  // value = mantissa * 2^(max(exponent, 1) - 1075); cut the mantissa at the words' borders.
  const int position = std::max(exponent, 1) - 1075 - kLowestExponent;
  const int word = position / 32, shift = position % 32;
  const uint64_t low = (mantissa & kDigitMask) << shift, high = (mantissa >> 32) << shift;
  const int64_t digit0 = static_cast<int64_t>(low & kDigitMask);
  const int64_t digit1 = static_cast<int64_t>((low >> 32) + (high & kDigitMask));
  const int64_t digit2 = static_cast<int64_t>(high >> 32);
  const int64_t sign = negative ? -1 : 1;
  words_[word] += sign * digit0;
  words_[word + 1] += sign * digit1;
  words_[word + 2] += sign * digit2;
}

void ExactSum::add(std::span<const double> values) { add_values<false>(*this, values); }
void ExactSum::add(std::span<const float> values) { add_values<false>(*this, values); }
void ExactSum::add_squares(std::span<const double> values) { add_values<true>(*this, values); }
void ExactSum::add_squares(std::span<const float> values) { add_values<true>(*this, values); }

void ExactSum::add(const ExactSum& other) {
  ExactSum addend = other;
  addend.normalise();
  if (pending_ >= kMaxPending) normalise();
  ++pending_;
  for (int i = 0; i < kWords; ++i) words_[i] += addend.words_[i];
}

void ExactSum::normalise() {
  carry(words_);
  pending_ = 1;
}

double ExactSum::value() const {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const bool positive_infinity = words_[kPositiveInfinity] != 0, negative_infinity = words_[kNegativeInfinity] != 0;
  if (words_[kNan] != 0 || (positive_infinity && negative_infinity)) return std::numeric_limits<double>::quiet_NaN();
  if (positive_infinity || negative_infinity) return positive_infinity ? kInfinity : -kInfinity;

  std::array<int64_t, kWords> digits = words_;
  carry(digits);
  const bool negative = digits[kDigits - 1] < 0;
  if (negative) {
    for (int i = 0; i < kDigits; ++i) digits[i] = -digits[i];
    carry(digits);
  }
  const double sign = negative ? -1.0 : 1.0;
  if (digits[kDigits - 1] != 0) return sign * kInfinity;
  int top = kDigits - 2;
  while (top >= 0 && digits[top] == 0) --top;
  if (top < 0) return 0.0;

  const auto bit = [&digits](int position) { return (digits[position / 32] >> (position % 32)) & 1; };
  const int highest = 32 * top + static_cast<int>(std::bit_width(static_cast<uint64_t>(digits[top]))) - 1;
  // Where the 53-bit mantissa ends; subnormal numbers have fewer bits.
  const int lowest = std::max(highest - 52, -1074 - kLowestExponent);
  int64_t mantissa = 0;
  for (int position = highest; position >= lowest; --position) mantissa = 2 * mantissa + bit(position);
  bool sticky = false;
  for (int position = lowest - 2; position >= 0 && !sticky; --position) sticky = bit(position) != 0;
  if (bit(lowest - 1) != 0 && (sticky || mantissa % 2 != 0)) ++mantissa;
  return sign * std::ldexp(static_cast<double>(mantissa), lowest + kLowestExponent);
}

}  // namespace quintet
