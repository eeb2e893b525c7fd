// Products of fp32 or bf16 operands are oneDNN's. fp64 ones, which it lacks, and fp32 ones in a build without it are
// our own cache-blocked products (Goto and van de Geijn 2008): a block of b is packed to stay in the level-2 cache
// while strips of a pass over it. a is read in place, unless it is transposed: then its columns are packed as well.
// Threads divide c and share nothing. What involves bf16 and oneDNN does not do is made of such products, in pieces.
#include "kernels/cpu/matmul.h"

#include "kernels/cpu/activation.h"
#include "kernels/cpu/matmul_dnnl.h"
#include "kernels/cpu/matmul_tile.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/scratch.h"

namespace quintet::kernels::cpu {

namespace {

constexpr int64_t kDepthBlock = 384;
// Columns of b and rows of a transposed a that are packed at a time.
template <typename T>
constexpr int64_t kColumnBlock = 6 * kTileColumns<T>;
constexpr int64_t kRowBlock = 16 * kTileRows;

// a [m, depth], which lies in memory as [depth][m], into strips of kTileRows rows: [strip][depth][kTileRows].
template <typename T>
void pack_rows(const T* a, int64_t lda, int64_t m, int64_t depth, T* packed) {
  const int64_t whole = m / kTileRows * kTileRows;
  for (int64_t k = 0; k < depth; ++k, a += lda) {
    T* to = packed + k * kTileRows;
    int64_t row = 0;
    for (; row < whole; row += kTileRows, to += depth * kTileRows) {
      std::memcpy(to, a + row, sizeof(T) * kTileRows);
    }
    for (int r = 0; row < m; ++row, ++r) to[r] = a[row];
  }
}

// Rows [row_begin, row_end) of c in `columns` get their share of the sums over `k`, whose part of b is packed.
template <TileStore kStore, typename T>
void multiply_block(const MatmulArgs<T>& args, Range rows, int64_t column, int64_t k, const PackedOperand<T>& b,
                    Scratch<T>& scratch) {
  T* c = args.c + column;
  if (!args.transpose_a) {
    block_product<kStore>(rows.size(), TileOperand<T>{args.a + rows.begin * args.lda + k, args.lda, 1}, b,
                          c + rows.begin * args.ldc, args.ldc);
    return;
  }
  T* a = scratch.get(kRowBlock * b.depth);
  for (int64_t row = rows.begin; row < rows.end; row += kRowBlock) {
    const int64_t count = std::min(kRowBlock, rows.end - row);
    pack_rows(args.a + k * args.lda + row, args.lda, count, b.depth, a);
    for (int64_t strip = 0; strip < count; strip += kTileRows) {
      block_product<kStore>(std::min<int64_t>(kTileRows, count - strip),
                            TileOperand<T>{a + strip * b.depth, 1, kTileRows}, b, c + (row + strip) * args.ldc,
                            args.ldc);
    }
  }
}

// The given part of c.
template <typename T>
void multiply(const MatmulArgs<T>& args, Range rows, Range columns) {
  thread_local Scratch<T> a_scratch, b_scratch;
  for (int64_t column = columns.begin; column < columns.end; column += kColumnBlock<T>) {
    const int64_t width = std::min(kColumnBlock<T>, columns.end - column);
    for (int64_t k = 0; k < args.k; k += kDepthBlock) {
      const int64_t depth = std::min(kDepthBlock, args.k - k);
      T* packed = b_scratch.get(packed_size<T>(depth, width));
      const PackedOperand<T> b = args.transpose_b
                                     ? pack_transposed(args.b + column * args.ldb + k, args.ldb, depth, width, packed)
                                     : pack(args.b + k * args.ldb + column, args.ldb, depth, width, packed);
      if (k == 0 && !args.accumulate) {
        multiply_block<TileStore::overwrite>(args, rows, column, k, b, a_scratch);
      } else {
        multiply_block<TileStore::add>(args, rows, column, k, b, a_scratch);
      }
    }
  }
}

template <typename T>
void multiply_by_blocks(const MatmulArgs<T>& args) {
  // Each thread packs its share of b, and of a transposed a: divide the larger of the two.
  const bool by_columns = args.n >= (args.transpose_a ? args.m : args.m / 8);
  constexpr int64_t kSmall = int64_t{1} << 15;  // quicker than waking a thread
  const int threads = args.m * args.n * args.k < kSmall ? 1 : args.threads;
  if (by_columns) {
    parallel_for(threads, args.n, kTileColumns<T>, [&](int64_t begin, int64_t end) {
      multiply(args, {0, args.m}, {begin, end});
    });
  } else {
    parallel_for(threads, args.m, kTileRows, [&](int64_t begin, int64_t end) {
      multiply(args, {begin, end}, {0, args.n});
    });
  }
}

// Part of an operand in the type of arithmetic: in place, or a copy [rows][columns] of what is bf16.
template <typename A>
struct Piece {
  const A* data;
  int64_t stride;
};
template <typename A>
Piece<A> widened(int /*threads*/, const A* from, int64_t stride, int64_t /*rows*/, int64_t /*columns*/,
                 Scratch<A>& /*scratch*/) {
  return {from, stride};
}
Piece<float> widened(int threads, const bfloat16* from, int64_t stride, int64_t rows, int64_t columns,
                     Scratch<float>& scratch) {
  float* wide = scratch.get(rows * columns);
  for_rows(threads, rows, columns, [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const bfloat16* values = from + row * stride;
      float* to = wide + row * columns;
#pragma omp simd
      for (int64_t column = 0; column < columns; ++column) to[column] = widen(values[column]);
    }
  });
  return {wide, columns};
}

// A piece of c at a time in the type of arithmetic, rounded when its sums are complete: some megabytes, whatever the
// sizes.
template <typename T, typename C, typename A = Arithmetic<T>>
void multiply_by_pieces(const MatmulArgs<T, C>& args) {
  constexpr int64_t kRows = 256, kColumns = 1024, kDepth = 1024;
  thread_local Scratch<A> a_scratch, b_scratch, sums_scratch;
  for (int64_t column = 0; column < args.n; column += kColumns) {
    const int64_t columns = std::min(kColumns, args.n - column);
    for (int64_t row = 0; row < args.m; row += kRows) {
      const int64_t rows = std::min(kRows, args.m - row);
      A* sums = sums_scratch.get(rows * columns);
      if (args.k <= 0) std::fill_n(sums, rows * columns, A{0});
      for (int64_t k = 0; k < args.k; k += kDepth) {
        const int64_t depth = std::min(kDepth, args.k - k);
        const Piece<A> a = args.transpose_a
                               ? widened(args.threads, args.a + k * args.lda + row, args.lda, depth, rows, a_scratch)
                               : widened(args.threads, args.a + row * args.lda + k, args.lda, rows, depth, a_scratch);
        const Piece<A> b =
            args.transpose_b
                ? widened(args.threads, args.b + column * args.ldb + k, args.ldb, columns, depth, b_scratch)
                : widened(args.threads, args.b + k * args.ldb + column, args.ldb, depth, columns, b_scratch);
        matmul<A, A>({.m = rows,
                      .n = columns,
                      .k = depth,
                      .a = a.data,
                      .lda = a.stride,
                      .transpose_a = args.transpose_a,
                      .b = b.data,
                      .ldb = b.stride,
                      .transpose_b = args.transpose_b,
                      .c = sums,
                      .ldc = columns,
                      .accumulate = k > 0,
                      .threads = args.threads});
      }
      for_rows(args.threads, rows, columns, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          C* c = args.c + (row + r) * args.ldc + column;
          A* sum = sums + r * columns;
          if (args.bias != nullptr) {
#pragma omp simd
            for (int64_t i = 0; i < columns; ++i) sum[i] += widen(args.bias[column + i]);
          }
          if (args.accumulate) {
#pragma omp simd
            for (int64_t i = 0; i < columns; ++i) c[i] = round_to<C>(static_cast<A>(widen(c[i])) + sum[i]);
          } else {
#pragma omp simd
            for (int64_t i = 0; i < columns; ++i) c[i] = round_to<C>(sum[i]);
          }
        }
      });
    }
  }
}

}  // namespace

template <typename T, typename C>
void matmul(const MatmulArgs<T, C>& args) {
  if (args.m <= 0 || args.n <= 0) return;
  QUINTET_CHECK(args.bias == nullptr || args.ldc == args.n, "a bias for {} of {} columns", args.n, args.ldc);
  if constexpr (std::is_same_v<T, C> && !std::is_same_v<T, bfloat16>) {
    if (args.k <= 0) {
      for (int64_t row = 0; row < (args.accumulate ? 0 : args.m); ++row) {
        std::fill_n(args.c + row * args.ldc, args.n, T{0});
      }
    } else if (!multiply_by_dnnl(args)) {
      multiply_by_blocks(args);
    }
    if (args.bias != nullptr) add_bias(args.threads, args.m, args.n, args.bias, args.c);
  } else if (args.k <= 0 || !multiply_by_dnnl(args)) {
    multiply_by_pieces(args);
  }
}

template void matmul(const MatmulArgs<float>&);
template void matmul(const MatmulArgs<double>&);
template void matmul(const MatmulArgs<bfloat16>&);
template void matmul(const MatmulArgs<bfloat16, float>&);
template void matmul(const MatmulArgs<float, bfloat16>&);
template void matmul(const MatmulArgs<double, bfloat16>&);

}  // namespace quintet::kernels::cpu
