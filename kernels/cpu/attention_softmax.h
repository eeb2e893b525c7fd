// What attention's two directions share: powers of two of vectors, and which keys a query sees.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/matmul_tile.h"

namespace quintet::kernels::cpu {

inline constexpr double kLog2E = 1.4426950408889634, kLn2 = 0.6931471805599453;

namespace detail {
// Terms of 2^f = exp(f ln 2) for |f| <= 1/2, so that the first one left out lies below a quarter of the rounding error.
template <typename T>
inline constexpr int kExpTerms = sizeof(T) == 4 ? 8 : 14;
template <typename T>
struct Exp2Series {
  T coefficient[kExpTerms<T>];
  constexpr Exp2Series() : coefficient() {
    double term = 1;
    for (int i = 0; i < kExpTerms<T>; ++i) {
      coefficient[i] = static_cast<T>(term);
      term *= kLn2 / (i + 1);
    }
  }
};
template <typename T>
inline constexpr Exp2Series<T> kExp2Series;
}  // namespace detail

// 2^x for x <= 0 or little above, to about one unit in the last place; 0 below the normal numbers. NaN stays NaN.
template <typename T>
inline Vector<T> exp2_of(Vector<T> x) {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  typedef Bits BitVector __attribute__((vector_size(kVectorBytes)));
  constexpr int kMantissa = std::numeric_limits<T>::digits - 1;
  constexpr T kSmallest = std::numeric_limits<T>::min_exponent - 1;
  // Adding 1.5 * 2^mantissa leaves round(x) in the low bits.
  constexpr T kMagic = static_cast<T>(Bits{3} << (kMantissa - 1));
  const Vector<T> shifted = x + kMagic;
  const Vector<T> f = x - (shifted - kMagic);
  constexpr auto& c = detail::kExp2Series<T>.coefficient;
  Vector<T> p = broadcast(c[detail::kExpTerms<T> - 1]);
#pragma GCC unroll 16
  for (int i = detail::kExpTerms<T> - 2; i >= 0; --i) p = p * f + c[i];
  const BitVector power = (std::bit_cast<BitVector>(shifted) << kMantissa) + std::bit_cast<Bits>(T{1});
  p *= std::bit_cast<Vector<T>>(power);
  return x < kSmallest ? Vector<T>{} : p;
}
template <typename T>
inline T exp2_of(T x) {
  return exp2_of<T>(broadcast(x))[0];
}

// Keys that query q of entry b sees, as rows of the key tensor; empty ranges may lie anywhere.
inline Range visible_keys(const AttentionShape& shape, int64_t b, int64_t q) {
  const int64_t end = std::min(shape.key_rows, shape.first_query + q + 1 - shape.first_key);
  if (shape.document_starts == nullptr) return {0, end};
  return {std::max<int64_t>(0, shape.document_starts[b * shape.query_rows + q] - shape.first_key), end};
}

// The first query that sees key row k, document starts aside.
inline int64_t first_query_of(const AttentionShape& shape, int64_t k) {
  return std::clamp<int64_t>(shape.first_key + k - shape.first_query, 0, shape.query_rows);
}

// Up to kTileRows queries against a tile of keys: what each sees within it, and the hull of that, begun at a strip.
template <typename T>
struct VisibleTile {
  Range row[kTileRows];
  Range all{0, 0};

  VisibleTile(const AttentionShape& shape, int64_t b, int64_t q, int rows, Range keys) {
    int64_t begin = keys.size(), end = 0;
    for (int r = 0; r < rows; ++r) {
      Range seen = visible_keys(shape, b, q + r);
      seen = {std::max(seen.begin, keys.begin) - keys.begin, std::min(seen.end, keys.end) - keys.begin};
      if (seen.begin >= seen.end) seen = {0, 0};
      row[r] = seen;
      if (seen.size() > 0) begin = std::min(begin, seen.begin);
      end = std::max(end, seen.end);
    }
    if (begin >= end) return;
    all = {begin / kTileColumns<T> * kTileColumns<T>, end};
  }

  bool empty() const { return all.size() == 0; }
  // The hull in whole vectors.
  Range columns() const { return {all.begin, (all.end + kLanes<T> - 1) / kLanes<T> * kLanes<T>}; }
  // Sets what row r does not see of columns() to `value`.
  void fill_unseen(int r, T value, T* values) const {
    const Range here = columns();
    const Range seen = row[r].size() > 0 ? row[r] : Range{here.end, here.end};
    for (int64_t k = here.begin; k < seen.begin; ++k) values[k] = value;
    for (int64_t k = seen.end; k < here.end; ++k) values[k] = value;
  }
};

}  // namespace quintet::kernels::cpu
