// A warp takes a row, its lanes every 32nd expert. Forward reads each logit and probability a few times, from the
// first-level cache but for the first: a row is small. The j-th choice is the largest below the one before in an order
// without equals, of score and index, so that nothing is remembered of earlier ones. Floors: 8 bytes for each row and
// expert forward, 12 backward, over the copy bandwidth. Twin: kernels/cpu/router.cpp.
#include "kernels/cuda/router.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/tiles.h"

namespace quintet::kernels::cuda {
namespace {

// The row of the running warp, and its lane.
struct RowOfWarp {
  int64_t row = (int64_t{blockIdx.x} * kTileThreads + threadIdx.x) / 32;
  int lane = static_cast<int>(threadIdx.x % 32);
};

// Larger scores are larger numbers, equal ones in descending order of experts; NaN counts as the smallest. Never 0.
__device__ __forceinline__ uint64_t rank_of(float score, int64_t expert) {
  const uint32_t bits = __float_as_uint(score);
  uint32_t ordered = (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
  if (score != score) ordered = 0;
  return uint64_t{ordered} << 32 | (0xffffffffU - static_cast<uint32_t>(expert));
}

__device__ __forceinline__ float sum_of_chosen(const float* probabilities, const int32_t* chosen, int64_t top_k) {
  float sum = 0.0F;
  for (int64_t j = 0; j < top_k; ++j) sum += probabilities[chosen[j]];
  return sum;
}

__global__ void __launch_bounds__(kTileThreads)
    router_forward_kernel(RouterShape shape, const float* logits, const float* selection_bias, bool round_robin,
                          float* probabilities, int32_t* chosen, float* weights, float* log_sum_exp) {
  const auto [t, lane] = RowOfWarp();
  if (t >= shape.rows) return;  // whole warps
  const int64_t experts = shape.experts, top_k = shape.top_k;
  logits += t * experts;
  probabilities += t * experts;
  chosen += t * top_k;
  float most = Maximum::kNeutral, sum = 0.0F;
  for (int64_t e = lane; e < experts; e += 32) most = Maximum::combine(most, logits[e]);
  most = reduce_warp<Maximum>(most);
  for (int64_t e = lane; e < experts; e += 32) sum += expf(logits[e] - most);
  sum = reduce_warp<Sum>(sum);
  for (int64_t e = lane; e < experts; e += 32) probabilities[e] = expf(logits[e] - most) / sum;
  if (lane == 0) log_sum_exp[t] = most + logf(sum);

  const int64_t position = shape.rows_of.identities[t] % shape.rows_of.sequence_length;
  uint64_t before = ~uint64_t{0};
  for (int64_t j = 0; j < top_k; ++j) {
    int64_t pick = (position * top_k + j) % experts;
    if (!round_robin) {
      uint64_t best = 0;
      for (int64_t e = lane; e < experts; e += 32) {
        const float score = selection_bias == nullptr ? probabilities[e] : probabilities[e] + selection_bias[e];
        const uint64_t rank = rank_of(score, e);
        if (rank < before) best = Maximum::combine(best, rank);
      }
      before = reduce_warp<Maximum>(best);
      pick = int64_t{0xffffffffU - static_cast<uint32_t>(before)};
    }
    if (lane == 0) chosen[j] = static_cast<int32_t>(pick);
  }
  __syncwarp();  // all see what the others wrote
  const float divisor = shape.normalize ? sum_of_chosen(probabilities, chosen, top_k) : 1.0F;
  for (int64_t j = lane; j < top_k; j += 32) weights[t * top_k + j] = probabilities[chosen[j]] / divisor;
}

__device__ __forceinline__ const float* loads_of(const RouterShape& shape, const float* loads, int64_t t) {
  const RowIdentities& rows = shape.rows_of;
  return loads + (rows.identities[t] / rows.sequence_length - rows.first_ordinal) * shape.experts;
}

__global__ void __launch_bounds__(kTileThreads)
    router_backward_kernel(RouterShape shape, RouterGradient gradient, float balance_scale, float z_scale) {
  const auto [t, lane] = RowOfWarp();
  if (t >= shape.rows) return;
  const int64_t experts = shape.experts, top_k = shape.top_k;
  const float* probabilities = gradient.probabilities + t * experts;
  const int32_t* chosen = gradient.chosen + t * top_k;
  const float* d_weights = gradient.d_weights + t * top_k;
  const float* loads = loads_of(shape, gradient.loads, t);
  float* d_logits = gradient.d_logits + t * experts;
  float weighted = 0.0F, divisor = 1.0F;
  if (shape.normalize) {
    for (int64_t j = 0; j < top_k; ++j) weighted += d_weights[j] * gradient.weights[t * top_k + j];
    divisor = sum_of_chosen(probabilities, chosen, top_k);
  }
  // d_logits first holds the gradient of the probabilities; each lane reads what it wrote itself.
  float mean = 0.0F;
  for (int64_t e = lane; e < experts; e += 32) {
    float d = balance_scale * loads[e];
    for (int64_t j = 0; j < top_k; ++j) {
      if (chosen[j] == e) d += (d_weights[j] - weighted) / divisor;
    }
    mean += d * probabilities[e];
    d_logits[e] = d;
  }
  mean = reduce_warp<Sum>(mean);
  const float z = z_scale * gradient.log_sum_exp[t];
  for (int64_t e = lane; e < experts; e += 32) d_logits[e] = probabilities[e] * (d_logits[e] - mean + z);
}

__global__ void __launch_bounds__(kTileThreads)
    router_losses_kernel(RouterShape shape, const float* probabilities, const float* loads, const float* log_sum_exp,
                         double* of_rows) {
  const auto [t, lane] = RowOfWarp();
  if (t >= shape.rows) return;
  const float* loads_of_row = loads_of(shape, loads, t);
  double balance = 0;
  for (int64_t e = lane; e < shape.experts; e += 32) {
    balance += static_cast<double>(probabilities[t * shape.experts + e]) * static_cast<double>(loads_of_row[e]);
  }
  balance = reduce_warp<Sum>(balance);
  if (lane != 0) return;
  const auto log_sum = static_cast<double>(log_sum_exp[t]);
  of_rows[t] = balance;
  of_rows[shape.rows + t] = log_sum * log_sum;
}

int64_t blocks_of(const RouterShape& shape) { return tiles(shape.rows * 32, 1); }

}  // namespace

void router_forward(const RouterShape& shape, const float* logits, const float* selection_bias, bool round_robin,
                    float* probabilities, int32_t* chosen, float* weights, float* log_sum_exp, cudaStream_t stream) {
  launch(router_forward_kernel, blocks_of(shape), kTileThreads, 0, stream, shape, logits, selection_bias, round_robin,
         probabilities, chosen, weights, log_sum_exp);
}

void router_backward(const RouterShape& shape, const RouterGradient& gradient, cudaStream_t stream) {
  launch(router_backward_kernel, blocks_of(shape), kTileThreads, 0, stream, shape, gradient,
         static_cast<float>(gradient.balance_scale), static_cast<float>(2 * gradient.z_scale));
}

void router_losses(const RouterShape& shape, const float* probabilities, const float* loads, const float* log_sum_exp,
                   double* of_rows, cudaStream_t stream) {
  launch(router_losses_kernel, blocks_of(shape), kTileThreads, 0, stream, shape, probabilities, loads, log_sum_exp,
         of_rows);
}

}  // namespace quintet::kernels::cuda
