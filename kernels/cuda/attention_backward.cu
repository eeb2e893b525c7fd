// Attention backward in bf16, one pass that computes the weights anew from log_sum_exp: a block takes a tile of keys
// and passes over the queries, of all heads that share the key head, that see some of them, from the last to the first.
// Its d_key and d_value grow in registers; what it adds to d_query goes through a workspace in fp32, to which the
// blocks of one head add in ascending order of their keys: each waits for its turn at a tile of queries, the first
// stores, the last rounds to d_query. So every sum has one order, and no atomics. All blocks walk the queries the same
// way, a tile apart; those with most to do begin first. With p = exp(score - log_sum_exp), dp = d_output . value, ds =
// p (dp - output . d_output): d_value = p^T d_output, d_key = ds^T query / sqrt(D), d_query = ds key / sqrt(D).
//
// Numbers: all in fp32 but p and ds, which are rounded to bf16 for their products; gradients are rounded once.
//
// Bytes for a pair of query and key at D 128: 4 of queries and d_outputs, 8 of the workspace, through the second-level
// cache. FLOPs: 10 D a pair; tiles that nobody sees are skipped. The next tile of queries is copied while this one is
// multiplied; p and ds go through shared memory, as other warps need them for their products.
//
// Budget: one block of 8 warps a multiprocessor, 255 registers, 161 KiB at D 128. What that should reach is counted in
// kernels/cuda/README.md. Twin: kernels/cpu/attention_backward.cpp.
#include <cmath>
#include <cstddef>

#include "kernels/cuda/attention_tiles.h"

namespace quintet::kernels::cuda {
namespace {

template <int D>
constexpr int kUnroll = D <= 96 ? D / 16 : 4;

// How a block's warps share its products: rows times columns of warps.
template <int D>
struct BackwardTiles {
  static constexpr int kWarps = 8, kThreads = 32 * kWarps;
  static constexpr int kQueries = D <= 128 ? 64 : 32, kKeys = D <= 128 ? 128 : 64;
  // Scores [kQueries, kKeys].
  static constexpr int kScoreColumns = 4, kScoreStrips = kQueries * kScoreColumns / kWarps / 16;
  static constexpr int kScoreKeys = kKeys / kScoreColumns;
  // Gradients of keys [kKeys, D]: 32 rows a warp.
  static constexpr int kKeyColumns = kWarps * 32 / kKeys, kKeyUnits = D / 8 / kKeyColumns;
  // Gradients of queries [kQueries, D].
  static constexpr int kQueryColumns = D == 256 ? 8 : D % 64 == 0 ? 4 : 2, kQueryUnits = D / 8 / kQueryColumns;
  static constexpr int kQueryStrips = kQueries * kQueryColumns / kWarps / 16;

  static constexpr int64_t kStageElements = 2 * kQueries * D + 4 * kQueries;  // query, d_output, two floats a row
  static constexpr int64_t kSharedBytes =
      (2 * kKeys * D + 2 * kStageElements + 2 * kQueries * kKeys) * int64_t{sizeof(bfloat16)};
  static_assert(kRowPadding % kQueries == 0);
};

// d_query between blocks of keys: for each batch entry, head and tile of queries, kQueryUnits * kQueryStrips packets of
// each thread; and the tile of keys whose turn it is to add. next_block counts the blocks that have begun.
struct QuerySums {
  float4* packets;
  int32_t* turns;
  int32_t* next_block;
  int tiles;  // of a head
};

template <int D, typename Gradient>
__global__ void __launch_bounds__(BackwardTiles<D>::kThreads, 1)
    attention_backward_kernel(AttentionBackwardArgs<bfloat16, Gradient> args, AttentionRows rows, QuerySums query_sums,
                              float scale, float factor) {
  using Tiles = BackwardTiles<D>;
  constexpr int kQueries = Tiles::kQueries, kKeys = Tiles::kKeys, kThreads = Tiles::kThreads;
  constexpr int kQueryPackets = Tiles::kQueryStrips * Tiles::kQueryUnits;
  const AttentionShape& shape = args.shape;
  // Work is dealt out in the order in which blocks begin: who waits for a turn waits for a block that runs.
  __shared__ int place, added;  // added: the first thread's, the tile of queries whose turn it is to pass on
  if (threadIdx.x == 0) {
    place = atomicAdd(query_sums.next_block, 1);
    added = -1;
  }
  __syncthreads();
  const int key_heads = static_cast<int>(shape.key_heads), sequences = static_cast<int>(shape.batch) * key_heads;
  const int key_tile = place / sequences, first = key_tile * kKeys;
  const int b = place % sequences / key_heads, key_head = place % key_heads;
  const int heads = static_cast<int>(shape.heads), dim = static_cast<int>(shape.head_dim);
  const int query_rows = static_cast<int>(shape.query_rows), key_rows = static_cast<int>(shape.key_rows);
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  // The warp's parts of scores and of gradients.
  const int row = warp / Tiles::kScoreColumns * 16 * Tiles::kScoreStrips;
  const int column = warp % Tiles::kScoreColumns * Tiles::kScoreKeys;
  const int key_row = warp / Tiles::kKeyColumns * 32, key_unit = warp % Tiles::kKeyColumns * Tiles::kKeyUnits;
  const int query_row = warp / Tiles::kQueryColumns * 16 * Tiles::kQueryStrips;
  const int query_unit = warp % Tiles::kQueryColumns * Tiles::kQueryUnits;

  auto* keys = static_cast<bfloat16*>(dynamic_shared_memory());
  bfloat16* values = keys + kKeys * D;
  bfloat16* rounded_weights = values + kKeys * D;  // [kQueries, kKeys], as are their gradients
  bfloat16* rounded_scores = rounded_weights + kQueries * kKeys;
  bfloat16* stages = rounded_scores + kQueries * kKeys;
  // Steps of the block: tiles of queries that see some of the keys, from the last one, of one head after another.
  const int first_tile = AttentionMask(shape, b).first_query(first) / kQueries;
  const int tiles_of_head = query_sums.tiles - first_tile, steps = tiles_of_head * (heads / key_heads);
  const auto head_of = [&](int step) { return key_head * (heads / key_heads) + step / tiles_of_head; };
  const auto tile_of = [&](int step) { return query_sums.tiles - 1 - step % tiles_of_head; };
  const auto start_step = [&](int step) {
    bfloat16* queries = stages + step % 2 * Tiles::kStageElements;
    const int head = head_of(step), query = tile_of(step) * kQueries;
    start_tile<D, kQueries, kThreads>(queries, args.query.at(b, head), args.query.row_stride, query, query_rows, dim);
    start_tile<D, kQueries, kThreads>(queries + kQueries * D, args.d_output.at(b, head), args.d_output.row_stride,
                                      query, query_rows, dim);
    if (threadIdx.x < kQueries / 2) {
      const int pair = static_cast<int>(threadIdx.x) * 2;
      copy_async(reinterpret_cast<float2*>(queries + 2 * kQueries * D) + pair, rows.at(b, heads, head) + query + pair);
    }
  };
  start_tile<D, kKeys, kThreads>(keys, args.key.at(b, key_head), args.key.row_stride, first, key_rows, dim);
  start_tile<D, kKeys, kThreads>(values, args.value.at(b, key_head), args.value.row_stride, first, key_rows, dim);
  if (steps > 0) start_step(0);
  commit_copies();

  float d_key[2][Tiles::kKeyUnits][4] = {}, d_value[2][Tiles::kKeyUnits][4] = {};
  for (int step = 0; step < steps; ++step) {
    wait_for_copies<0>();
    __syncthreads();  // this tile is complete, and nobody reads the one before it any more, nor its weights
    if (step + 1 < steps) start_step(step + 1);
    commit_copies();
    const int head = head_of(step), tile = tile_of(step), query = tile * kQueries;
    const int at_tile = (b * heads + head) * query_sums.tiles + tile;
    bfloat16* queries = stages + step % 2 * Tiles::kStageElements;
    bfloat16* d_outputs = queries + kQueries * D;
    const auto* terms_of_rows = reinterpret_cast<const float2*>(d_outputs + kQueries * D);

    const VisibleKeys visible(AttentionMask(shape, b), query, kQueries);
    if (!visible.any(first, kKeys)) continue;
    const bool whole = visible.whole(first, kKeys);
    // All tiles of keys between these take part.
    const bool first_adds = key_tile == visible.hull.begin / kKeys;
    const bool last_adds = key_tile == (visible.hull.end - 1) / kKeys;

    float weights[Tiles::kScoreStrips][Tiles::kScoreKeys / 8][4];
    float d_scores[Tiles::kScoreStrips][Tiles::kScoreKeys / 8][4];
    product_of_rows<D, kUnroll<D>>(weights, queries, row, keys + column * D);
    product_of_rows<D, kUnroll<D>>(d_scores, d_outputs, row, values + column * D);
    if (!whole) {
      const AttentionMask mask(shape, b);
#pragma unroll
      for (int i = 0; i < Tiles::kScoreStrips * 2; ++i) {
        const int q = query + row + 8 * i + lane / 4, at = first + column + 2 * (lane % 4);
        const KeyRange seen = {mask.begin(q) - at, mask.end(q) - at};
#pragma unroll
        for (int j = 0; j < Tiles::kScoreKeys / 8 * 2; ++j) {
          const int k = j / 2 * 8 + j % 2;
          if (k < seen.begin || k >= seen.end) weights[i / 2][j / 2][i % 2 * 2 + j % 2] = -infinity();
        }
      }
    }
#pragma unroll
    for (int i = 0; i < Tiles::kScoreStrips * 2; ++i) {
      const int r = row + 8 * i + lane / 4;
      const float2 terms = terms_of_rows[r];
#pragma unroll
      for (int j = 0; j < Tiles::kScoreKeys / 8; ++j) {
        float p[2], ds[2];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          p[k] = power_of_two(weights[i / 2][j][i % 2 * 2 + k] * scale - terms.x);
          ds[k] = p[k] * (d_scores[i / 2][j][i % 2 * 2 + k] - terms.y);
        }
        const int64_t at = tile_unit<kKeys>(rounded_weights, r, column / 8 + j) + 2 * (lane % 4) - rounded_weights;
        *reinterpret_cast<uint32_t*>(rounded_weights + at) = to_bfloat16_pair(p[0], p[1]);
        *reinterpret_cast<uint32_t*>(rounded_scores + at) = to_bfloat16_pair(ds[0], ds[1]);
      }
    }
    if (threadIdx.x == 0) {
      // Passed on so late, as by now the stores behind the last barrier have arrived and hold up nobody.
      if (added >= 0) pass_turn(query_sums.turns + added, key_tile + 1);
      if (!first_adds) wait_for_turn(query_sums.turns + at_tile, key_tile);
      added = at_tile;
    }
    __syncthreads();  // weights are complete, and it is this block's turn

    float4* packets = query_sums.packets + int64_t{at_tile} * kQueryPackets * kThreads + threadIdx.x;
    float d_query[Tiles::kQueryStrips][Tiles::kQueryUnits][4];
#pragma unroll
    for (int i = 0; i < kQueryPackets; ++i) {
      float(&sums)[4] = d_query[i / Tiles::kQueryUnits][i % Tiles::kQueryUnits];
      const float4 before = first_adds ? make_float4(0, 0, 0, 0) : packets[i * kThreads];
      sums[0] = before.x, sums[1] = before.y, sums[2] = before.z, sums[3] = before.w;
    }
    const auto transposed = [&](bfloat16* left) {
      return [=](uint32_t(&a)[4], int strip, int step_of_product) {
        load_left_transposed<kKeys>(a, left, 16 * step_of_product, key_row / 8 + 2 * strip);
      };
    };
    const auto add_to_keys = [&] {
      add_product<D, kQueries / 16>(d_value, transposed(rounded_weights), d_outputs, key_unit);
      add_product<D, kQueries / 16>(d_key, transposed(rounded_scores), queries, key_unit);
    };
    // Meanwhile what was read comes. At D 256 registers are too few for all three sums at once.
    if constexpr (D < 256) add_to_keys();
    const auto plain = [&](uint32_t(&a)[4], int strip, int step_of_product) {
      load_left<kKeys>(a, rounded_scores, query_row + 16 * strip, step_of_product);
    };
    add_product<D, kKeys / 16>(d_query, plain, keys, query_unit);
    if (last_adds) {
      scale_sums(d_query, factor);
      store_rows(d_query, query_row, args.d_query.at(b, head), args.d_query.row_stride, query, query_rows, dim,
                 args.accumulate, query_unit);
    } else {
#pragma unroll
      for (int i = 0; i < kQueryPackets; ++i) {
        const float(&sums)[4] = d_query[i / Tiles::kQueryUnits][i % Tiles::kQueryUnits];
        packets[i * kThreads] = make_float4(sums[0], sums[1], sums[2], sums[3]);
      }
    }
    if constexpr (D == 256) add_to_keys();
  }
  scale_sums(d_key, factor);
  wait_for_copies<0>();  // of keys that nobody saw
  __syncthreads();
  if (threadIdx.x == 0 && added >= 0) pass_turn(query_sums.turns + added, key_tile + 1);
  store_rows<D>(d_key, keys, key_row, args.d_key.at(b, key_head), args.d_key.row_stride, first, key_rows, dim,
                args.accumulate, key_unit);
  store_rows<D>(d_value, values, key_row, args.d_value.at(b, key_head), args.d_value.row_stride, first, key_rows, dim,
                args.accumulate, key_unit);
}

template <int D>
int64_t query_tiles(const AttentionShape& shape) {
  return shape.batch * shape.heads * ceil_div(shape.query_rows, BackwardTiles<D>::kQueries);
}
template <int D>
constexpr int64_t kTileBytes = BackwardTiles<D>::kQueries* D* int64_t{sizeof(float)};

template <typename Gradient>
void backward(const AttentionBackwardArgs<bfloat16, Gradient>& args, cudaStream_t stream) {
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
  visit_head_dim(shape.head_dim, [&]<int D>() {
    using Tiles = BackwardTiles<D>;
    const int64_t tiles = query_tiles<D>(shape);
    auto* packets = static_cast<std::byte*>(args.workspace) + attention_rows_bytes(shape);
    auto* turns = reinterpret_cast<int32_t*>(packets + tiles * kTileBytes<D>);
    require_success(cudaMemsetAsync(turns, 0, narrow<size_t>(tiles + 1) * sizeof(int32_t), stream));
    const QuerySums sums = {reinterpret_cast<float4*>(packets), turns, turns + tiles,
                            narrow<int>(ceil_div(shape.query_rows, Tiles::kQueries))};
    launch(attention_backward_kernel<D, Gradient>,
           ceil_div(shape.key_rows, Tiles::kKeys) * shape.key_heads * shape.batch, Tiles::kThreads, Tiles::kSharedBytes,
           stream, args, rows, sums, scale, static_cast<float>(factor));
  });
}

}  // namespace

// Rows, then what blocks add to d_query, then whose turn it is.
template <>
int64_t attention_backward_workspace<bfloat16>(const AttentionShape& shape) {
  return visit_head_dim(shape.head_dim, [&]<int D>() {
    const int64_t tiles = query_tiles<D>(shape);
    return attention_rows_bytes(shape) + tiles * kTileBytes<D> + (tiles + 1) * int64_t{sizeof(int32_t)};
  });
}

template <>
void attention_backward(const AttentionBackwardArgs<bfloat16>& args, cudaStream_t stream) {
  backward(args, stream);
}
template <>
void attention_backward(const AttentionBackwardArgs<bfloat16, float>& args, cudaStream_t stream) {
  backward(args, stream);
}

}  // namespace quintet::kernels::cuda
