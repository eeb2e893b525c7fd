// Attention in fp32, for training in fp32 and to check others by: multiply-adds, no tensor cores, memory linear in the
// sequence. A block of 8 warps takes 32 rows of one side and passes over the other side in tiles of 32 rows, all held
// in shared memory, in rows whose 16-byte units lie in other banks than the next row's. A warp owns 4 rows: a lane has
// their scores against one streamed row, then one column in 32 of their sums, for which the warp's weights lie in
// shared memory. Forward and d_query stream keys past queries; d_key and d_value stream the queries of each head past
// keys, as in attention_backward.cu. Sums have one owner and one order.
//
// FLOPs as in the bf16 kernels; bytes too, of the streamed side once for each 32 rows. Budget: one block a
// multiprocessor, at most 200 registers, 133 KiB at D 256. Shared memory bounds it: 8 reads of a warp for 16
// multiply-adds of scores, 5 for 16 of sums, where 4 would keep up. Hoped for: a third of the fp32 peak.
// Twins: kernels/cpu/attention.cpp, kernels/cpu/attention_backward.cpp.
#include <cmath>

#include "kernels/cuda/attention_mask.h"
#include "kernels/cuda/elements.h"

namespace quintet::kernels::cuda {
namespace {

constexpr int kTile = 32, kWarps = 8, kThreads = 32 * kWarps, kOwned = kTile / kWarps;

// Rows of up to 32 * kColumns elements.
template <int kColumns>
constexpr int kRow = 32 * kColumns + 4;
template <int kColumns>
constexpr int64_t kTileBytes = kTile* kRow<kColumns>* int64_t{sizeof(float)};

// Copies rows [first, first + kTile) of a head's matrix; zeros where there are none, or beyond `dim` columns.
template <int kColumns>
__device__ __forceinline__ void load_tile(float* tile, const float* head, int64_t row_stride, int first, int rows,
                                          int dim, bool packets) {
  constexpr int kWidth = 32 * kColumns;
  for (int i = static_cast<int>(threadIdx.x) * 4; i < kTile * kWidth; i += kThreads * 4) {
    const int row = i / kWidth, column = i % kWidth;
    float values[4] = {};
    if (first + row < rows) {
      const float* from = head + (int64_t{first} + row) * row_stride + column;
      if (packets) {
        if (column < dim) load(from, values);
      } else {
#pragma unroll
        for (int k = 0; k < 4; ++k) values[k] = column + k < dim ? from[k] : 0.0F;
      }
    }
    store(values, tile + row * kRow<kColumns> + column);
  }
}

// Each of the warp's own rows times the lane's streamed row.
template <int kColumns>
__device__ __forceinline__ void multiply_rows(float (&to)[kOwned], const float* own, const float* streamed, int dim) {
  const int lane = static_cast<int>(threadIdx.x % 32), row = static_cast<int>(threadIdx.x / 32) * kOwned;
#pragma unroll
  for (int r = 0; r < kOwned; ++r) to[r] = 0.0F;
  for (int i = 0; i < dim; i += 4) {
    float factors[4];
    load(streamed + lane * kRow<kColumns> + i, factors);
#pragma unroll
    for (int r = 0; r < kOwned; ++r) {
      float values[4];
      load(own + (row + r) * kRow<kColumns> + i, values);
#pragma unroll
      for (int k = 0; k < 4; ++k) to[r] += values[k] * factors[k];
    }
  }
}

// sums of own row r += weights[r] of lane j times streamed row j, over all j.
template <int kColumns>
__device__ __forceinline__ void add_weighted(float (&sums)[kOwned][kColumns], const float (&weights)[kOwned],
                                             const float* streamed) {
  static_assert(kOwned == 4);
  __shared__ float4 of_lanes[kWarps][32];
  float4* of_warp = of_lanes[threadIdx.x / 32];
  const int lane = static_cast<int>(threadIdx.x % 32);
  __syncwarp();
  of_warp[lane] = make_float4(weights[0], weights[1], weights[2], weights[3]);
  __syncwarp();
  for (int j = 0; j < kTile; ++j) {
    const float4 weight = of_warp[j];
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      const float value = streamed[j * kRow<kColumns> + 32 * column + lane];
      sums[0][column] += weight.x * value;
      sums[1][column] += weight.y * value;
      sums[2][column] += weight.z * value;
      sums[3][column] += weight.w * value;
    }
  }
}

template <int kColumns>
__device__ __forceinline__ void store_owned(const float (&sums)[kOwned][kColumns], float factor, float* head,
                                            int64_t row_stride, int first, int rows, int dim, bool accumulate) {
  const int lane = static_cast<int>(threadIdx.x % 32), row = first + static_cast<int>(threadIdx.x / 32) * kOwned;
#pragma unroll
  for (int r = 0; r < kOwned; ++r) {
    if (row + r >= rows) continue;
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      const int i = 32 * column + lane;
      if (i >= dim) continue;
      float& to = head[(int64_t{row} + r) * row_stride + i];
      to = sums[r][column] * factor + (accumulate ? to : 0.0F);
    }
  }
}

template <int kColumns>
__global__ void __launch_bounds__(kThreads, 1)
    attention_forward_plain_kernel(AttentionForwardArgs<float> args, float scale, bool packets) {
  const AttentionShape& shape = args.shape;
  const int64_t b = blockIdx.z, head = blockIdx.y, key_head = head * shape.key_heads / shape.heads;
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kTile, dim = static_cast<int>(shape.head_dim);
  const int lane = static_cast<int>(threadIdx.x % 32), row = first + static_cast<int>(threadIdx.x / 32) * kOwned;
  const AttentionMask mask(shape, b);
  const VisibleKeys visible(mask, first, kTile);
  auto* queries = static_cast<float*>(dynamic_shared_memory());
  float* keys = queries + kTile * kRow<kColumns>;
  float* values = keys + kTile * kRow<kColumns>;
  load_tile<kColumns>(queries, args.query.at(b, head), args.query.row_stride, first, mask.query_rows, dim, packets);

  float output[kOwned][kColumns] = {}, maxima[kOwned], sums[kOwned] = {};
#pragma unroll
  for (int r = 0; r < kOwned; ++r) maxima[r] = -infinity();
  for (int key = visible.hull.begin / kTile * kTile; key < visible.hull.end; key += kTile) {
    __syncthreads();
    load_tile<kColumns>(keys, args.key.at(b, key_head), args.key.row_stride, key, mask.key_rows, dim, packets);
    load_tile<kColumns>(values, args.value.at(b, key_head), args.value.row_stride, key, mask.key_rows, dim, packets);
    __syncthreads();
    float weights[kOwned];
    multiply_rows<kColumns>(weights, queries, keys, dim);
#pragma unroll
    for (int r = 0; r < kOwned; ++r) {
      const float score = mask.sees(row + r, key + lane) ? weights[r] * scale : -infinity();
      const float larger = fmaxf(maxima[r], reduce_warp<Maximum>(score));
      const float reference = larger == -infinity() ? 0.0F : larger;
      const float factor = exp2f(maxima[r] - reference);
      weights[r] = exp2f(score - reference);
      sums[r] = sums[r] * factor + reduce_warp<Sum>(weights[r]);
      maxima[r] = larger;
#pragma unroll
      for (int column = 0; column < kColumns; ++column) output[r][column] *= factor;
    }
    add_weighted<kColumns>(output, weights, values);
  }
#pragma unroll
  for (int r = 0; r < kOwned; ++r) {
    const bool nothing = sums[r] == 0.0F;  // a sum is NaN or at least 1 otherwise
    const float inverse = nothing ? 0.0F : 1.0F / sums[r];
#pragma unroll
    for (int column = 0; column < kColumns; ++column) output[r][column] *= inverse;
    if (lane == 0 && row + r < mask.query_rows) {
      args.log_sum_exp[(b * shape.heads + head) * shape.query_rows + row + r] =
          nothing ? -infinity() : maxima[r] * kLn2 + logf(sums[r]);
    }
  }
  store_owned<kColumns>(output, 1.0F, args.output.at(b, head), args.output.row_stride, first, mask.query_rows, dim,
                        false);
}

template <int kColumns>
__global__ void __launch_bounds__(kThreads, 1)
    attention_backward_query_plain_kernel(AttentionBackwardArgs<float> args, AttentionRows rows, float scale,
                                          float factor, bool packets) {
  const AttentionShape& shape = args.shape;
  const int64_t b = blockIdx.z, head = blockIdx.y, key_head = head * shape.key_heads / shape.heads;
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kTile, dim = static_cast<int>(shape.head_dim);
  const int lane = static_cast<int>(threadIdx.x % 32), row = first + static_cast<int>(threadIdx.x / 32) * kOwned;
  const AttentionMask mask(shape, b);
  const VisibleKeys visible(mask, first, kTile);
  auto* queries = static_cast<float*>(dynamic_shared_memory());
  float* d_outputs = queries + kTile * kRow<kColumns>;
  float* keys = d_outputs + kTile * kRow<kColumns>;
  float* values = keys + kTile * kRow<kColumns>;
  load_tile<kColumns>(queries, args.query.at(b, head), args.query.row_stride, first, mask.query_rows, dim, packets);
  load_tile<kColumns>(d_outputs, args.d_output.at(b, head), args.d_output.row_stride, first, mask.query_rows, dim,
                      packets);
  const float2* terms = rows.at(b, shape.heads, head) + row;

  float d_query[kOwned][kColumns] = {};
  for (int key = visible.hull.begin / kTile * kTile; key < visible.hull.end; key += kTile) {
    __syncthreads();
    load_tile<kColumns>(keys, args.key.at(b, key_head), args.key.row_stride, key, mask.key_rows, dim, packets);
    load_tile<kColumns>(values, args.value.at(b, key_head), args.value.row_stride, key, mask.key_rows, dim, packets);
    __syncthreads();
    float weights[kOwned], d_scores[kOwned];
    multiply_rows<kColumns>(weights, queries, keys, dim);
    multiply_rows<kColumns>(d_scores, d_outputs, values, dim);
#pragma unroll
    for (int r = 0; r < kOwned; ++r) {
      const bool seen = mask.sees(row + r, key + lane);
      d_scores[r] = seen ? exp2f(weights[r] * scale - terms[r].x) * (d_scores[r] - terms[r].y) : 0.0F;
    }
    add_weighted<kColumns>(d_query, d_scores, keys);
  }
  store_owned<kColumns>(d_query, factor, args.d_query.at(b, head), args.d_query.row_stride, first, mask.query_rows, dim,
                        args.accumulate);
}

template <int kColumns>
__global__ void __launch_bounds__(kThreads, 1)
    attention_backward_key_plain_kernel(AttentionBackwardArgs<float> args, AttentionRows rows, float scale,
                                        float factor, bool packets) {
  const AttentionShape& shape = args.shape;
  const int64_t b = blockIdx.z, key_head = blockIdx.y, group = shape.heads / shape.key_heads;
  const int first = static_cast<int>(blockIdx.x) * kTile, dim = static_cast<int>(shape.head_dim);
  const int lane = static_cast<int>(threadIdx.x % 32), row = first + static_cast<int>(threadIdx.x / 32) * kOwned;
  const AttentionMask mask(shape, b);
  auto* keys = static_cast<float*>(dynamic_shared_memory());
  float* values = keys + kTile * kRow<kColumns>;
  float* queries = values + kTile * kRow<kColumns>;
  float* d_outputs = queries + kTile * kRow<kColumns>;
  load_tile<kColumns>(keys, args.key.at(b, key_head), args.key.row_stride, first, mask.key_rows, dim, packets);
  load_tile<kColumns>(values, args.value.at(b, key_head), args.value.row_stride, first, mask.key_rows, dim, packets);

  float d_key[kOwned][kColumns] = {}, d_value[kOwned][kColumns] = {};
  for (int64_t head = key_head * group; head < (key_head + 1) * group; ++head) {
    for (int query = mask.first_query(first) / kTile * kTile; query < mask.query_rows; query += kTile) {
      if (!VisibleKeys(mask, query, kTile).any(first, kTile)) continue;
      __syncthreads();
      load_tile<kColumns>(queries, args.query.at(b, head), args.query.row_stride, query, mask.query_rows, dim, packets);
      load_tile<kColumns>(d_outputs, args.d_output.at(b, head), args.d_output.row_stride, query, mask.query_rows, dim,
                          packets);
      __syncthreads();
      float weights[kOwned], d_scores[kOwned];
      multiply_rows<kColumns>(weights, keys, queries, dim);
      multiply_rows<kColumns>(d_scores, values, d_outputs, dim);
      const float2 terms = rows.at(b, shape.heads, head)[query + lane];
#pragma unroll
      for (int r = 0; r < kOwned; ++r) {
        weights[r] = mask.sees(query + lane, row + r) ? exp2f(weights[r] * scale - terms.x) : 0.0F;
        d_scores[r] = weights[r] * (d_scores[r] - terms.y);
      }
      add_weighted<kColumns>(d_value, weights, d_outputs);
      add_weighted<kColumns>(d_key, d_scores, queries);
    }
  }
  store_owned<kColumns>(d_key, factor, args.d_key.at(b, key_head), args.d_key.row_stride, first, mask.key_rows, dim,
                        args.accumulate);
  store_owned<kColumns>(d_value, 1.0F, args.d_value.at(b, key_head), args.d_value.row_stride, first, mask.key_rows, dim,
                        args.accumulate);
}

template <typename T>
bool aligned(const HeadTensor<T>& tensor, int64_t head_dim) {
  return head_dim % kPacket<float> == 0 && in_packets(tensor.row_stride, tensor.data) &&
         in_packets(tensor.head_stride, tensor.data) && in_packets(tensor.batch_stride, tensor.data);
}

// Calls function.template operator()<kColumns>() for the narrowest rows that hold head_dim.
template <typename Function>
void visit_columns(int64_t head_dim, Function&& function) {
  if (head_dim <= 32) return function.template operator()<1>();
  if (head_dim <= 64) return function.template operator()<2>();
  if (head_dim <= 128) return function.template operator()<4>();
  function.template operator()<8>();
}

dim3 grid_of(int64_t rows, int64_t heads, int64_t batch) {
  return {narrow<unsigned>(ceil_div(rows, kTile)), narrow<unsigned>(heads), narrow<unsigned>(batch)};
}

}  // namespace

template <>
void attention_forward(const AttentionForwardArgs<float>& args, cudaStream_t stream) {
  const AttentionShape& shape = args.shape;
  check_shape(shape);
  const auto scale = static_cast<float>(1.4426950408889634 / std::sqrt(static_cast<double>(shape.head_dim)));
  const bool packets =
      aligned(args.query, shape.head_dim) && aligned(args.key, shape.head_dim) && aligned(args.value, shape.head_dim);
  visit_columns(shape.head_dim, [&]<int kColumns>() {
    launch(attention_forward_plain_kernel<kColumns>, grid_of(shape.query_rows, shape.heads, shape.batch), kThreads,
           3 * kTileBytes<kColumns>, stream, args, scale, packets);
  });
}

template <>
int64_t attention_backward_workspace<float>(const AttentionShape& shape) {
  return attention_rows_bytes(shape);
}

template <>
void attention_backward(const AttentionBackwardArgs<float>& args, cudaStream_t stream) {
  const AttentionShape& shape = args.shape;
  check_shape(shape);
  const double root = std::sqrt(static_cast<double>(shape.head_dim));
  const auto scale = static_cast<float>(1.4426950408889634 / root), factor = static_cast<float>(1 / root);
  const bool packets = aligned(args.query, shape.head_dim) && aligned(args.key, shape.head_dim) &&
                       aligned(args.value, shape.head_dim) && aligned(args.d_output, shape.head_dim);
  const AttentionRows rows = attention_rows(args, stream);
  visit_columns(shape.head_dim, [&]<int kColumns>() {
    launch(attention_backward_key_plain_kernel<kColumns>, grid_of(shape.key_rows, shape.key_heads, shape.batch),
           kThreads, 4 * kTileBytes<kColumns>, stream, args, rows, scale, factor, packets);
    launch(attention_backward_query_plain_kernel<kColumns>, grid_of(shape.query_rows, shape.heads, shape.batch),
           kThreads, 4 * kTileBytes<kColumns>, stream, args, rows, scale, factor, packets);
  });
}

}  // namespace quintet::kernels::cuda
