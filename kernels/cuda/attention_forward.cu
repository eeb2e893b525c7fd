// Attention forward in bf16 (Dao 2023, FlashAttention-2). A block of 4 warps takes 64 or 128 queries of one head and
// passes over the keys that some of them see, tile by tile: the next tile of keys and values is copied while this one
// is multiplied. Scores, weights and the growing output stay in registers; a warp never needs another's.
//
// Numbers: scores, maxima, sums and output in fp32, weights rounded to bf16 for their product with the values;
// exponentials are powers of two of scores that the scale has been folded into.
//
// Bytes: query and output once, keys and values once for each block of queries, mostly from L2. FLOPs: 4 D for each
// pair of query and key, of which causality keeps half; tiles that nobody sees are skipped, and only tiles at an edge
// of what is seen are masked. Late blocks, which see most keys, are launched first.
//
// Budget: two blocks a multiprocessor (one at D 128 and 256 on compute capability 8.0), at most 255 registers, 96 KiB
// at D 128 and 256, 0.75 KiB * D below. At D 128 a warp reads 80 times from shared memory for 256 products: 320 cycles
// of a multiprocessor where an H200's tensor cores need at least 256, and about 400 by mma.sync; exponentials take 128
// beside them. Hoped for: 45 % of cuBLASLt's peak. Twin: kernels/cpu/attention.cpp.
#include <cmath>

#include "kernels/cuda/attention_tiles.h"

namespace quintet::kernels::cuda {
namespace {

template <int D>
constexpr int kUnroll = D <= 128 ? D / 16 : 4;

constexpr int kWarps = 4, kThreads = 32 * kWarps;

template <int D>
struct ForwardTiles {
  static constexpr int kStrips = D <= 128 ? 2 : 1;  // of 16 queries, a warp; what the registers hold
  static constexpr int kQueries = 16 * kStrips * kWarps;
  static constexpr int kKeys = D <= 128 ? 64 : 32;
  static constexpr int64_t kSharedBytes = (kQueries + 4 * kKeys) * D * int64_t{sizeof(bfloat16)};
};

template <int D, typename Output>
__global__ void __launch_bounds__(kThreads)
    attention_forward_kernel(AttentionForwardArgs<bfloat16, Output> args, float scale) {
  using Tiles = ForwardTiles<D>;
  constexpr int kStrips = Tiles::kStrips, kKeys = Tiles::kKeys;
  const AttentionShape& shape = args.shape;
  const int64_t b = blockIdx.z, head = blockIdx.y, key_head = head * shape.key_heads / shape.heads;
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Tiles::kQueries;
  const int dim = static_cast<int>(shape.head_dim);
  const int lane = static_cast<int>(threadIdx.x % 32), row = static_cast<int>(threadIdx.x / 32) * 16 * kStrips;
  const int query_rows = static_cast<int>(shape.query_rows), key_rows = static_cast<int>(shape.key_rows);
  const VisibleKeys visible(AttentionMask(shape, b), first, Tiles::kQueries);

  auto* queries = static_cast<bfloat16*>(dynamic_shared_memory());
  bfloat16* tiles = queries + Tiles::kQueries * D;  // keys and values, twice
  const auto start_keys = [&](int key, int stage) {
    bfloat16* keys = tiles + stage * 2 * kKeys * D;
    start_tile<D, kKeys, kThreads>(keys, args.key.at(b, key_head), args.key.row_stride, key, key_rows, dim);
    start_tile<D, kKeys, kThreads>(keys + kKeys * D, args.value.at(b, key_head), args.value.row_stride, key, key_rows,
                                   dim);
  };

  float output[kStrips][D / 8][4] = {};
  float maxima[kStrips][2], sums[kStrips][2];  // of rows lane / 4 and lane / 4 + 8; of score * scale
#pragma unroll
  for (int i = 0; i < kStrips * 2; ++i) {
    maxima[i / 2][i % 2] = -infinity();
    sums[i / 2][i % 2] = 0.0F;
  }

  start_tile<D, Tiles::kQueries, kThreads>(queries, args.query.at(b, head), args.query.row_stride, first, query_rows,
                                           dim);
  int key = visible.hull.begin / kKeys * kKeys, stage = 0;
  if (key < visible.hull.end) start_keys(key, stage);
  commit_copies();
  for (; key < visible.hull.end; key += kKeys, stage ^= 1) {
    wait_for_copies<0>();
    __syncthreads();  // this tile is complete, and nobody reads the one before it any more
    if (key + kKeys < visible.hull.end) start_keys(key + kKeys, stage ^ 1);
    commit_copies();
    bfloat16* keys = tiles + stage * 2 * kKeys * D;

    float scores[kStrips][kKeys / 8][4];
    product_of_rows<D, kUnroll<D>>(scores, queries, row, keys);
    if (!visible.whole(key, kKeys)) {
      const AttentionMask mask(shape, b);  // made anew: kept, it would cost registers through the products
#pragma unroll
      for (int i = 0; i < kStrips * 2; ++i) {
        const int q = first + row + 8 * i + lane / 4, at = key + 2 * (lane % 4);
        const KeyRange seen = {mask.begin(q) - at, mask.end(q) - at};
#pragma unroll
        for (int j = 0; j < kKeys / 8 * 2; ++j) {
          const int k = j / 2 * 8 + j % 2;
          if (k < seen.begin || k >= seen.end) scores[i / 2][j / 2][i % 2 * 2 + j % 2] = -infinity();
        }
      }
    }
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float larger = -infinity();
#pragma unroll
        for (int i = 0; i < kKeys / 8 * 2; ++i) larger = fmaxf(larger, scores[strip][i / 2][2 * half + i % 2]);
        larger = fmaxf(larger, __shfl_xor_sync(kAllLanes, larger, 1));
        larger = fmaxf(larger, __shfl_xor_sync(kAllLanes, larger, 2));
        larger = fmaxf(maxima[strip][half], larger * scale);
        const float reference = larger == -infinity() ? 0.0F : larger;
        const float factor = power_of_two(maxima[strip][half] - reference);
        float sum = sums[strip][half] * factor;
#pragma unroll
        for (int i = 0; i < kKeys / 8 * 2; ++i) {
          float& score = scores[strip][i / 2][2 * half + i % 2];
          score = power_of_two(score * scale - reference);
          sum += score;
        }
        sums[strip][half] = sum;
        maxima[strip][half] = larger;
#pragma unroll
        for (int i = 0; i < D / 8 * 2; ++i) output[strip][i / 2][2 * half + i % 2] *= factor;
      }
    }
    add_weighted_rows<D>(output, scores, keys + kKeys * D);
  }

  float* log_sum_exp = args.log_sum_exp + (b * shape.heads + head) * shape.query_rows;
#pragma unroll
  for (int strip = 0; strip < kStrips; ++strip) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = sums[strip][half];
      sum += __shfl_xor_sync(kAllLanes, sum, 1);
      sum += __shfl_xor_sync(kAllLanes, sum, 2);
      const bool nothing = sum == 0.0F;  // a sum is NaN or at least 1 otherwise
      const float inverse = nothing ? 0.0F : 1.0F / sum;
#pragma unroll
      for (int i = 0; i < D / 8 * 2; ++i) output[strip][i / 2][2 * half + i % 2] *= inverse;
      const int q = first + row + 16 * strip + 8 * half + lane / 4;
      if (lane % 4 == 0 && q < query_rows) {
        log_sum_exp[q] = nothing ? -infinity() : maxima[strip][half] * kLn2 + logf(sum);
      }
    }
  }
  wait_for_copies<0>();  // of queries that saw no key
  __syncthreads();
  store_rows<D>(output, queries, row, args.output.at(b, head), args.output.row_stride, first, query_rows, dim, false);
}

template <typename Output>
void forward(const AttentionForwardArgs<bfloat16, Output>& args, cudaStream_t stream) {
  const AttentionShape& shape = args.shape;
  check_shape(shape);
  check_tensor(args.query, "query");
  check_tensor(args.key, "key");
  check_tensor(args.value, "value");
  check_tensor(args.output, "output");
  const auto scale = static_cast<float>(1.4426950408889634 / std::sqrt(static_cast<double>(shape.head_dim)));
  visit_head_dim(shape.head_dim, [&]<int D>() {
    using Tiles = ForwardTiles<D>;
    const dim3 grid(narrow<unsigned>(ceil_div(shape.query_rows, Tiles::kQueries)), narrow<unsigned>(shape.heads),
                    narrow<unsigned>(shape.batch));
    launch(attention_forward_kernel<D, Output>, grid, kThreads, Tiles::kSharedBytes, stream, args, scale);
  });
}

}  // namespace

template <>
void attention_forward(const AttentionForwardArgs<bfloat16>& args, cudaStream_t stream) {
  forward(args, stream);
}
template <>
void attention_forward(const AttentionForwardArgs<bfloat16, float>& args, cudaStream_t stream) {
  forward(args, stream);
}

}  // namespace quintet::kernels::cuda
