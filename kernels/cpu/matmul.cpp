// fp32 products are oneDNN's. fp64 ones, which it lacks, and fp32 ones in a build without it are our own
// cache-blocked products (Goto and van de Geijn 2008): a block of b is packed to stay in the level-2 cache while
// strips of a pass over it. a is read in place, unless it is transposed: then its columns are packed as well.
// Threads divide c and share nothing.
#include "kernels/cpu/matmul.h"

#ifdef QUINTET_HAS_DNNL
#include <oneapi/dnnl/dnnl.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#endif

#include "kernels/cpu/matmul_tile.h"
#include "lib/base/parallel.h"

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

#ifdef QUINTET_HAS_DNNL
// No signal handler may run on this thread meanwhile, unless on a stack of its own: see lib/training/signals.h.
void multiply_by_dnnl(const MatmulArgs<float>& args) {
#ifdef _OPENMP
  omp_set_num_threads(args.threads);  // of the calling rank alone
#endif
  const dnnl_status_t status =
      dnnl_sgemm(args.transpose_a ? 'T' : 'N', args.transpose_b ? 'T' : 'N', args.m, args.n, args.k, 1.0F, args.a,
                 args.lda, args.b, args.ldb, args.accumulate ? 1.0F : 0.0F, args.c, args.ldc);
  QUINTET_CHECK(status == dnnl_success, "dnnl_sgemm of {} x {} x {} returns {}", args.m, args.n, args.k,
                static_cast<int>(status));
}
#endif

}  // namespace

template <typename T>
void matmul(const MatmulArgs<T>& args) {
  if (args.m <= 0 || args.n <= 0) return;
  if (args.k <= 0) {
    if (args.accumulate) return;
    for (int64_t row = 0; row < args.m; ++row) std::fill_n(args.c + row * args.ldc, args.n, T{0});
    return;
  }
#ifdef QUINTET_HAS_DNNL
  if constexpr (std::is_same_v<T, float>) {
    multiply_by_dnnl(args);
    return;
  }
#endif
  multiply_by_blocks(args);
}

template void matmul(const MatmulArgs<float>&);
template void matmul(const MatmulArgs<double>&);

}  // namespace quintet::kernels::cpu
