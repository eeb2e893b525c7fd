// Packing for the register-tiled product.
#include "kernels/cpu/matmul_tile.h"

#include <utility>

namespace quintet::kernels::cpu {

namespace {

// The vector whose lane l is lane (l without bit kBit) of low or high, by that bit: one step of a transposition.
template <typename T, int kBit, int kHalf, size_t... kLane>
inline Vector<T> exchange(Vector<T> low, Vector<T> high, std::index_sequence<kLane...>) {
  constexpr int kWidth = kLanes<T>;
  // Lanes with bit kBit clear come from low, the others from high; kHalf says which of the pair is made.
  return __builtin_shufflevector(
      low, high,
      ((static_cast<int>(kLane) & kBit) == 0 ? (static_cast<int>(kLane) | (kHalf * kBit))
                                             : ((static_cast<int>(kLane) & ~kBit) | (kHalf * kBit)) + kWidth)...);
}

template <typename T, int kBit>
inline void transpose_step(Vector<T>* rows) {
  constexpr int kWidth = kLanes<T>;
  if constexpr (kBit < kWidth) {
    constexpr auto kAll = std::make_index_sequence<static_cast<size_t>(kWidth)>{};
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) {
      if ((i & kBit) != 0) continue;
      const Vector<T> low = rows[i], high = rows[i | kBit];
      rows[i] = exchange<T, kBit, 0>(low, high, kAll);
      rows[i | kBit] = exchange<T, kBit, 1>(low, high, kAll);
    }
    transpose_step<T, kBit * 2>(rows);
  }
}

}  // namespace

template <typename T>
PackedOperand<T> pack(const T* b, int64_t ldb, int64_t depth, int64_t columns, T* packed) {
  const PackedOperand<T> result{packed, depth, columns};
  constexpr int64_t kWidth = kLanes<T>;
  for (int64_t column = 0; column < columns; column += kTileColumns<T>) {
    const int64_t here = std::min<int64_t>(columns - column, kTileColumns<T>);
    const int64_t whole = here / kWidth, rest = here % kWidth;
    for (int64_t k = 0; k < depth; ++k) {
      const T* from = b + k * ldb + column;
      for (int64_t v = 0; v < whole; ++v, from += kWidth, packed += kWidth) store(load(from), packed);
      if (rest != 0) {
        for (int64_t lane = 0; lane < kWidth; ++lane) packed[lane] = lane < rest ? from[lane] : T{0};
        packed += kWidth;
      }
    }
  }
  return result;
}

template <typename T>
PackedOperand<T> pack_transposed(const T* b, int64_t ldb, int64_t depth, int64_t columns, T* packed) {
  const PackedOperand<T> result{packed, depth, columns};
  constexpr int64_t kWidth = kLanes<T>;
  const int64_t depth_in_blocks = depth / kWidth * kWidth;
  for (int64_t column = 0; column < columns; column += kTileColumns<T>) {
    const int64_t here = std::min<int64_t>(columns - column, kTileColumns<T>);
    const int64_t width = result.strip_width(column);
    for (int64_t first = 0; first < width; first += kWidth) {
      const T* from = b + (column + first) * ldb;
      T* to = packed + first;
      const int64_t lanes = std::min(kWidth, here - first);
      int64_t k = 0;
      if (lanes == kWidth) {
        for (; k < depth_in_blocks; k += kWidth) {
          Vector<T> block[kWidth];
#pragma GCC unroll 16
          for (int64_t i = 0; i < kWidth; ++i) block[i] = load(from + i * ldb + k);
          transpose_step<T, 1>(block);
#pragma GCC unroll 16
          for (int64_t i = 0; i < kWidth; ++i) store(block[i], to + (k + i) * width);
        }
      }
      for (; k < depth; ++k) {
        for (int64_t lane = 0; lane < kWidth; ++lane) to[k * width + lane] = lane < lanes ? from[lane * ldb + k] : T{0};
      }
    }
    packed += width * depth;
  }
  return result;
}

template PackedOperand<float> pack(const float*, int64_t, int64_t, int64_t, float*);
template PackedOperand<double> pack(const double*, int64_t, int64_t, int64_t, double*);
template PackedOperand<float> pack_transposed(const float*, int64_t, int64_t, int64_t, float*);
template PackedOperand<double> pack_transposed(const double*, int64_t, int64_t, int64_t, double*);

}  // namespace quintet::kernels::cpu
