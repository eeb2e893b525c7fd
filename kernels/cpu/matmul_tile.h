// The register-tiled product under matmul and attention: c += a b, where b is packed into strips as wide as a register
// tile and a is read in place, one broadcast element at a time. Every element of c is one chain of fused
// multiply-adds in ascending k, whatever tile it falls in.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace quintet::kernels::cpu {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64, kTileRows = 6, kTileVectors = 4;
#elif defined(__AVX__)
inline constexpr int kVectorBytes = 32, kTileRows = 4, kTileVectors = 3;
#else
inline constexpr int kVectorBytes = 16, kTileRows = 4, kTileVectors = 3;
#endif

template <typename T>
inline constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));
template <typename T>
inline constexpr int kTileColumns = kTileVectors* kLanes<T>;

// A register of T, and the same at any address in memory.
template <typename T>
struct VectorOf {
  typedef T type __attribute__((vector_size(kVectorBytes)));
  typedef T in_memory __attribute__((vector_size(kVectorBytes), aligned(sizeof(T)), may_alias));
};
template <typename T>
using Vector = typename VectorOf<T>::type;

template <typename T>
inline Vector<T> load(const T* from) {
  return *reinterpret_cast<const typename VectorOf<T>::in_memory*>(from);
}
template <typename T>
inline void store(Vector<T> vector, T* to) {
  *reinterpret_cast<typename VectorOf<T>::in_memory*>(to) = vector;
}
template <typename T>
inline Vector<T> broadcast(T value) {
  return Vector<T>{} + value;
}

// An operand read in place: element (row, k) lies at data[row * row_stride + k * k_stride].
template <typename T>
struct TileOperand {
  const T* data;
  int64_t row_stride, k_stride;

  TileOperand from(int64_t row, int64_t k) const {
    return {data + row * row_stride + k * k_stride, row_stride, k_stride};
  }
};

// An operand [depth, columns] packed into strips of kTileColumns, the last one as many whole vectors wide as it needs:
// [strip][depth][width], zero beyond `columns`.
template <typename T>
struct PackedOperand {
  const T* data;
  int64_t depth, columns;

  // `column` begins a strip.
  int64_t strip_width(int64_t column) const {
    constexpr int64_t kWidth = kLanes<T>;
    return std::min<int64_t>(kTileColumns<T>, (columns - column + kWidth - 1) / kWidth * kWidth);
  }
};

// Elements of [depth, columns] when packed.
template <typename T>
constexpr int64_t packed_size(int64_t depth, int64_t columns) {
  return (columns + kLanes<T> - 1) / kLanes<T> * kLanes<T> * depth;
}

// Packs b [depth, columns], which lies in memory as [depth][columns], or as [columns][depth] for the transposed one,
// with a leading dimension of ldb. `packed` holds packed_size elements.
template <typename T>
PackedOperand<T> pack(const T* b, int64_t ldb, int64_t depth, int64_t columns, T* packed);
template <typename T>
PackedOperand<T> pack_transposed(const T* b, int64_t ldb, int64_t depth, int64_t columns, T* packed);

// What a tile's sums do to c: replace it, add to it, or add to its row r times row_factors[r] (a factor of 0 replaces).
enum class TileStore { overwrite, add, rescale };

namespace detail {

template <TileStore kStore, typename Value, typename T>
inline Value stored(Value old, Value sum, T factor) {
  if constexpr (kStore == TileStore::overwrite) return sum;
  if constexpr (kStore == TileStore::add) return old + sum;
  return old * factor + sum;
}

template <TileStore kStore, typename T>
inline void store_lanes(Vector<T> sum, T factor, T* to, int lanes) {
  if (lanes >= kLanes<T>) {
    store(kStore == TileStore::overwrite ? sum : stored<kStore>(load(to), sum, factor), to);
    return;
  }
  T sums[kLanes<T>];
  store(sum, sums);
  for (int lane = 0; lane < lanes; ++lane) to[lane] = stored<kStore>(to[lane], sums[lane], factor);
}

template <typename T, int kVectors, TileStore kStore>
inline void tile_kernel(int rows, int columns, int64_t depth, TileOperand<T> a, const T* b, int64_t b_stride, T* c,
                        int64_t ldc, const T* row_factors) {
  // Rows past the end repeat the last one and are not stored.
  const T* row[kTileRows];
  for (int r = 0; r < kTileRows; ++r) row[r] = a.data + std::min(r, rows - 1) * a.row_stride;
  Vector<T> sums[kTileRows][kVectors] = {};
  for (int64_t k = 0, at = 0; k < depth; ++k, at += a.k_stride, b += b_stride) {
    Vector<T> b_row[kVectors];
    for (int v = 0; v < kVectors; ++v) b_row[v] = load(b + v * kLanes<T>);
    for (int r = 0; r < kTileRows; ++r) {
      const Vector<T> factor = broadcast(row[r][at]);
      for (int v = 0; v < kVectors; ++v) sums[r][v] += factor * b_row[v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r) {
    if (r >= rows) break;
    T* to = c + r * ldc;
    const T factor = kStore == TileStore::rescale ? row_factors[r] : T{1};
    const bool replace = kStore == TileStore::rescale && factor == T{0};
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const int lanes = columns - v * kLanes<T>;
      if (replace) {
        store_lanes<TileStore::overwrite>(sums[r][v], factor, to + v * kLanes<T>, lanes);
      } else {
        store_lanes<kStore>(sums[r][v], factor, to + v * kLanes<T>, lanes);
      }
    }
  }
}

template <TileStore kStore, typename T, int kVectors = kTileVectors>
inline void tile_of_width(int rows, int columns, int64_t depth, TileOperand<T> a, const T* b, int64_t b_stride, T* c,
                          int64_t ldc, const T* row_factors) {
  if constexpr (kVectors > 1) {
    if (columns <= (kVectors - 1) * kLanes<T>) {
      tile_of_width<kStore, T, kVectors - 1>(rows, columns, depth, a, b, b_stride, c, ldc, row_factors);
      return;
    }
  }
  tile_kernel<T, kVectors, kStore>(rows, columns, depth, a, b, b_stride, c, ldc, row_factors);
}

}  // namespace detail

// A range of indices.
struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

// c [m, columns] from a [m, k] b [k, columns], where k and columns are ranges of b's, `columns` beginning with a strip.
// a and c begin at these ranges. row_factors [m] only to rescale.
template <TileStore kStore, typename T>
inline void block_product(int64_t m, Range columns, Range k, TileOperand<T> a, const PackedOperand<T>& b, T* c,
                          int64_t ldc, const T* row_factors = nullptr) {
  for (int64_t row = 0; row < m; row += kTileRows) {
    const int rows = static_cast<int>(std::min<int64_t>(kTileRows, m - row));
    for (int64_t column = columns.begin; column < columns.end; column += kTileColumns<T>) {
      const int width = static_cast<int>(std::min<int64_t>(kTileColumns<T>, columns.end - column));
      const int64_t b_stride = b.strip_width(column);
      detail::tile_of_width<kStore, T>(
          rows, width, k.size(), a.from(row, 0), b.data + column * b.depth + k.begin * b_stride, b_stride,
          c + row * ldc + column - columns.begin, ldc, kStore == TileStore::rescale ? row_factors + row : nullptr);
    }
  }
}
template <TileStore kStore, typename T>
inline void block_product(int64_t m, TileOperand<T> a, const PackedOperand<T>& b, T* c, int64_t ldc) {
  block_product<kStore, T>(m, {0, b.columns}, {0, b.depth}, a, b, c, ldc);
}

}  // namespace quintet::kernels::cpu
