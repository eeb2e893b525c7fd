// Attention backward in bf16, two passes that each compute the weights anew from log_sum_exp: one block for each tile
// of keys makes d_key and d_value, over all queries of all heads that share the key head; one for each tile of queries
// makes d_query. Every sum has one owner and one order: no atomics. As a warp's scores never leave its registers, the
// passes need no shared memory but for the operands, of which the next tile is copied while this one is multiplied.
// With p = exp(score - log_sum_exp), dp = d_output . value, ds = p (dp - output . d_output): d_value = p^T d_output,
// d_key = ds^T query / sqrt(D), d_query = ds key / sqrt(D).
//
// Numbers: all in fp32 but p and ds, which are rounded to bf16 for their products; gradients are rounded once.
//
// Bytes: the block's own rows once, the others once for each block, mostly from L2. FLOPs: 8 D and 6 D for each pair of
// query and key where one pass would need 10 D: the price of one order. Tiles that nobody sees are skipped.
//
// Budget: at D 128 two blocks a multiprocessor, 255 registers, 96 and 97 KiB; at D 256 one of 128 KiB. Shared memory is
// what bounds it at D 128: for a pair of query and key the passes read 0.31 and 0.56 cycles' worth of it, so that at
// most 36 % of an H200's tensor peak is reached, counted as 10 D. Hoped for: 27 %. Twin:
// kernels/cpu/attention_backward.cpp.
#include <cmath>

#include "kernels/cuda/attention_tiles.h"

namespace quintet::kernels::cuda {
namespace {

template <int D>
constexpr int kUnroll = D <= 96 ? D / 16 : 4;

// Queries against keys: a warp owns 16 * kStrips queries.
template <int D>
struct QueryTiles {
  static constexpr int kWarps = 4, kThreads = 32 * kWarps;
  static constexpr int kStrips = D <= 128 ? 2 : 1;
  static constexpr int kQueries = 16 * kStrips * kWarps;
  static constexpr int kKeys = 32;
  static constexpr int64_t kSharedBytes = (2 * kQueries + 4 * kKeys) * D * int64_t{sizeof(bfloat16)};
  static_assert(kRowPadding % kQueries == 0);
};

// Keys against queries: a warp owns 16 keys and 1 / kParts of their gradients' columns.
template <int D>
struct KeyTiles {
  static constexpr int kParts = D <= 128 ? 1 : 2;
  static constexpr int kWarps = 4 * kParts, kThreads = 32 * kWarps;
  static constexpr int kKeys = 64;
  static constexpr int kQueries = D <= 128 ? 64 : 32;
  static constexpr int64_t kStageElements = 2 * kQueries * D + 4 * kQueries;  // query, d_output, two floats a row
  static constexpr int64_t kSharedBytes = (2 * kKeys * D + 2 * kStageElements) * int64_t{sizeof(bfloat16)};
  static_assert(kRowPadding % kQueries == 0);
};

template <int D>
__global__ void __launch_bounds__(QueryTiles<D>::kThreads, 1)
    attention_backward_query_kernel(AttentionBackwardArgs<bfloat16> args, AttentionRows rows, float scale,
                                    float factor) {
  using Tiles = QueryTiles<D>;
  constexpr int kStrips = Tiles::kStrips, kKeys = Tiles::kKeys, kThreads = Tiles::kThreads;
  const AttentionShape& shape = args.shape;
  const int64_t b = blockIdx.z, head = blockIdx.y, key_head = head * shape.key_heads / shape.heads;
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Tiles::kQueries;
  const int dim = static_cast<int>(shape.head_dim);
  const int query_rows = static_cast<int>(shape.query_rows), key_rows = static_cast<int>(shape.key_rows);
  const int lane = static_cast<int>(threadIdx.x % 32), row = static_cast<int>(threadIdx.x / 32) * 16 * kStrips;
  const VisibleKeys visible(AttentionMask(shape, b), first, Tiles::kQueries);

  auto* queries = static_cast<bfloat16*>(dynamic_shared_memory());
  bfloat16* d_outputs = queries + Tiles::kQueries * D;
  bfloat16* tiles = d_outputs + Tiles::kQueries * D;  // keys and values, twice
  const auto start_keys = [&](int key, int stage) {
    bfloat16* keys = tiles + stage * 2 * kKeys * D;
    start_tile<D, kKeys, kThreads>(keys, args.key.at(b, key_head), args.key.row_stride, key, key_rows, dim);
    start_tile<D, kKeys, kThreads>(keys + kKeys * D, args.value.at(b, key_head), args.value.row_stride, key, key_rows,
                                   dim);
  };
  start_tile<D, Tiles::kQueries, kThreads>(queries, args.query.at(b, head), args.query.row_stride, first, query_rows,
                                           dim);
  start_tile<D, Tiles::kQueries, kThreads>(d_outputs, args.d_output.at(b, head), args.d_output.row_stride, first,
                                           query_rows, dim);
  const float2* row_of_lane = rows.at(b, shape.heads, head) + first + row + lane / 4;

  float d_query[kStrips][D / 8][4] = {};
  int key = visible.hull.begin / kKeys * kKeys, stage = 0;
  if (key < visible.hull.end) start_keys(key, stage);
  commit_copies();
  for (; key < visible.hull.end; key += kKeys, stage ^= 1) {
    wait_for_copies<0>();
    __syncthreads();  // this tile is complete, and nobody reads the one before it any more
    if (key + kKeys < visible.hull.end) start_keys(key + kKeys, stage ^ 1);
    commit_copies();
    bfloat16* keys = tiles + stage * 2 * kKeys * D;

    float weights[kStrips][kKeys / 8][4], d_scores[kStrips][kKeys / 8][4];
    product_of_rows<D, kUnroll<D>>(d_scores, d_outputs, row, keys + kKeys * D);
    product_of_rows<D, kUnroll<D>>(weights, queries, row, keys);
    if (!visible.whole(key, kKeys)) {
      const AttentionMask mask(shape, b);  // made anew: kept, it would cost registers through the products
#pragma unroll
      for (int i = 0; i < kStrips * 2; ++i) {
        const int q = first + row + 8 * i + lane / 4, at = key + 2 * (lane % 4);
        const KeyRange seen = {mask.begin(q) - at, mask.end(q) - at};
#pragma unroll
        for (int j = 0; j < kKeys / 8 * 2; ++j) {
          const int k = j / 2 * 8 + j % 2;
          if (k < seen.begin || k >= seen.end) weights[i / 2][j / 2][i % 2 * 2 + j % 2] = -infinity();
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kStrips * 2; ++i) {
      // Read anew for each tile, from L1: kept, they too would cost registers.
      const float2 terms = row_of_lane[8 * i];
#pragma unroll
      for (int j = 0; j < kKeys / 8 * 2; ++j) {
        const float p = power_of_two(weights[i / 2][j / 2][i % 2 * 2 + j % 2] * scale - terms.x);
        float& d_score = d_scores[i / 2][j / 2][i % 2 * 2 + j % 2];
        d_score = p * (d_score - terms.y);
      }
    }
    add_weighted_rows<D>(d_query, d_scores, keys);
  }
#pragma unroll
  for (int i = 0; i < kStrips * D / 2; ++i) d_query[i / (D / 2)][i / 4 % (D / 8)][i % 4] *= factor;
  wait_for_copies<0>();  // of queries that saw no key
  __syncthreads();
  store_rows<D>(d_query, queries, row, args.d_query.at(b, head), args.d_query.row_stride, first, query_rows, dim,
                args.accumulate);
}

template <int D>
__global__ void __launch_bounds__(KeyTiles<D>::kThreads)
    attention_backward_key_kernel(AttentionBackwardArgs<bfloat16> args, AttentionRows rows, float scale, float factor) {
  using Tiles = KeyTiles<D>;
  constexpr int kQueries = Tiles::kQueries, kKeys = Tiles::kKeys, kThreads = Tiles::kThreads;
  constexpr int kUnits = D / 8 / Tiles::kParts;
  const AttentionShape& shape = args.shape;
  const int64_t b = blockIdx.z, key_head = blockIdx.y;
  const int first = static_cast<int>(blockIdx.x) * kKeys;
  const int dim = static_cast<int>(shape.head_dim);
  const int query_rows = static_cast<int>(shape.query_rows), key_rows = static_cast<int>(shape.key_rows);
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int row = warp / Tiles::kParts * 16, unit = warp % Tiles::kParts * kUnits;

  auto* keys = static_cast<bfloat16*>(dynamic_shared_memory());
  bfloat16* values = keys + kKeys * D;
  bfloat16* stages = values + kKeys * D;
  // Tiles of queries that see some of the keys, for one head after another of those that share the key head.
  const int first_tile = AttentionMask(shape, b).first_query(first) / kQueries;
  const int tiles_of_head = (query_rows + kQueries - 1) / kQueries - first_tile;
  int head = static_cast<int>(key_head * (shape.heads / shape.key_heads));
  const int last_head = head + static_cast<int>(shape.heads / shape.key_heads);
  const auto start_queries = [&](int h, int query, int stage) {
    bfloat16* queries = stages + stage * Tiles::kStageElements;
    start_tile<D, kQueries, kThreads>(queries, args.query.at(b, h), args.query.row_stride, query, query_rows, dim);
    start_tile<D, kQueries, kThreads>(queries + kQueries * D, args.d_output.at(b, h), args.d_output.row_stride, query,
                                      query_rows, dim);
    if (threadIdx.x < kQueries / 2) {
      const int pair = static_cast<int>(threadIdx.x) * 2;
      copy_async(reinterpret_cast<float2*>(queries + 2 * kQueries * D) + pair,
                 rows.at(b, shape.heads, h) + query + pair);
    }
  };
  start_tile<D, kKeys, kThreads>(keys, args.key.at(b, key_head), args.key.row_stride, first, key_rows, dim);
  start_tile<D, kKeys, kThreads>(values, args.value.at(b, key_head), args.value.row_stride, first, key_rows, dim);

  float d_key[1][kUnits][4] = {}, d_value[1][kUnits][4] = {};
  int tile = 0, stage = 0;
  if (tiles_of_head > 0) {
    start_queries(head, first_tile * kQueries, 0);
  } else {
    head = last_head;
  }
  commit_copies();
  while (head < last_head) {
    wait_for_copies<0>();
    __syncthreads();  // this tile is complete, and nobody reads the one before it any more
    const int query = (first_tile + tile) * kQueries;
    if (++tile == tiles_of_head) {
      tile = 0;
      ++head;
    }
    if (head < last_head) start_queries(head, (first_tile + tile) * kQueries, stage ^ 1);
    commit_copies();
    bfloat16* queries = stages + stage * Tiles::kStageElements;
    bfloat16* d_outputs = queries + kQueries * D;
    const auto* terms_of_rows = reinterpret_cast<const float2*>(d_outputs + kQueries * D);
    stage ^= 1;

    const VisibleKeys visible(AttentionMask(shape, b), query, kQueries);
    if (!visible.any(first, kKeys)) continue;
    const bool whole = visible.whole(first, kKeys);

    // Transposed: rows are keys.
    float weights[1][kQueries / 8][4], d_scores[1][kQueries / 8][4];
    product_of_rows<D, kUnroll<D>>(weights, keys, row, queries);
    product_of_rows<D, kUnroll<D>>(d_scores, values, row, d_outputs);
    if (!whole) {
      const AttentionMask mask(shape, b);
#pragma unroll
      for (int i = 0; i < kQueries / 8 * 2; ++i) {
        const int q = query + i / 2 * 8 + 2 * (lane % 4) + i % 2, at = first + row + lane / 4;
        const KeyRange seen = {mask.begin(q) - at, mask.end(q) - at};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (8 * half < seen.begin || 8 * half >= seen.end) weights[0][i / 2][2 * half + i % 2] = -infinity();
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kQueries / 8 * 2; ++i) {
      const float2 terms = terms_of_rows[i / 2 * 8 + 2 * (lane % 4) + i % 2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& weight = weights[0][i / 2][2 * half + i % 2];
        float& d_score = d_scores[0][i / 2][2 * half + i % 2];
        weight = power_of_two(weight * scale - terms.x);
        d_score = weight * (d_score - terms.y);
      }
    }
    add_weighted_rows<D>(d_value, weights, d_outputs, unit);
    add_weighted_rows<D>(d_key, d_scores, queries, unit);
  }
#pragma unroll
  for (int i = 0; i < kUnits * 4; ++i) d_key[0][i / 4][i % 4] *= factor;
  wait_for_copies<0>();  // of keys that nobody saw
  __syncthreads();
  store_rows<D>(d_key, keys, row, args.d_key.at(b, key_head), args.d_key.row_stride, first, key_rows, dim,
                args.accumulate, unit);
  store_rows<D>(d_value, values, row, args.d_value.at(b, key_head), args.d_value.row_stride, first, key_rows, dim,
                args.accumulate, unit);
}

}  // namespace

template <>
void attention_backward(const AttentionBackwardArgs<bfloat16>& args, cudaStream_t stream) {
  const AttentionShape& shape = args.shape;
  check_shape(shape);
  check_tensor(args.query, "query");
  check_tensor(args.key, "key");
  check_tensor(args.value, "value");
  check_tensor(args.d_output, "d_output");
  check_tensor(args.d_query, "d_query");
  check_tensor(args.d_key, "d_key");
  check_tensor(args.d_value, "d_value");
  const double factor = 1 / std::sqrt(static_cast<double>(shape.head_dim));
  const auto scale = static_cast<float>(1.4426950408889634 * factor);
  const AttentionRows rows = attention_rows(args, stream);
  const auto grid = [&](int64_t tiles, int64_t heads) {
    return dim3(narrow<unsigned>(tiles), narrow<unsigned>(heads), narrow<unsigned>(shape.batch));
  };
  visit_head_dim(shape.head_dim, [&]<int D>() {
    launch(attention_backward_key_kernel<D>, grid(ceil_div(shape.key_rows, KeyTiles<D>::kKeys), shape.key_heads),
           KeyTiles<D>::kThreads, KeyTiles<D>::kSharedBytes, stream, args, rows, scale, static_cast<float>(factor));
    launch(attention_backward_query_kernel<D>, grid(ceil_div(shape.query_rows, QueryTiles<D>::kQueries), shape.heads),
           QueryTiles<D>::kThreads, QueryTiles<D>::kSharedBytes, stream, args, rows, scale, static_cast<float>(factor));
  });
}

}  // namespace quintet::kernels::cuda
