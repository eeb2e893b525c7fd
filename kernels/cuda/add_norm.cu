// Residual, dropout and norm in one pass over a row. One block a row; each thread keeps up to 16 elements in registers,
// so that device memory is touched once and the variance is summed around the mean, which costs a large mean no digits.
// Forward moves 4 elements each (2 without a branch), backward 3 (4 when accumulating): the floor is that many bytes
// over the copy bandwidth. Widths that are no multiple of 16 bytes go element by element. Twin:
// kernels/cpu/add_norm.cpp.
#include "kernels/cuda/add_norm.h"

#include <algorithm>

#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/dropout_mask.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.h"

namespace quintet::kernels::cuda {
namespace {

constexpr int kPerThread = 16;
constexpr int kSinglesPerThread = 8;  // of a row that is read element by element: 16 would not fit the registers
constexpr int kMaxBlock = 1024;
static_assert(kPerThread * kMaxBlock == kMaxNormWidth && kSinglesPerThread * kMaxBlock == kMaxUnevenNormWidth);

// The first column of a thread's packet p.
template <int N>
__device__ __forceinline__ int64_t column_of(int p) {
  return (int64_t{p} * blockDim.x + threadIdx.x) * N;
}

template <typename T, int N, int P>
__global__ void __launch_bounds__(kMaxBlock)
    add_norm_forward_kernel(AddNormForwardArgs<T> args, DropoutKey key, float inverse_width) {
  __shared__ float sums[2][32];
  const int64_t width = args.width, t = blockIdx.x, first = t * width;
  float x[P][N];
  float sum = 0.0F;
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int64_t c = column_of<N>(p);
    if (c >= width) continue;
    load(args.residual + first + c, x[p]);
    if (args.branch != nullptr) {
      float branch[N];
      load(args.branch + first + c, branch);
      if (key.active) {
        const uint64_t row = static_cast<uint64_t>(key.rows[t]) * static_cast<uint64_t>(width);
        drop(key, row + static_cast<uint64_t>(c), branch);
      }
#pragma unroll
      for (int k = 0; k < N; ++k) x[p][k] = rounded<T>(__fadd_rn(x[p][k], branch[k]));
      store(x[p], args.residual_output + first + c);
    }
#pragma unroll
    for (int k = 0; k < N; ++k) sum += x[p][k];
  }
  const bool layer = args.norm == Norm::layer;
  const float mean = layer ? reduce_block<Sum>(sum, sums[0]) * inverse_width : 0.0F;
  float squares = 0.0F;
#pragma unroll
  for (int p = 0; p < P; ++p) {
    if (column_of<N>(p) >= width) continue;
#pragma unroll
    for (int k = 0; k < N; ++k) squares += (x[p][k] - mean) * (x[p][k] - mean);
  }
  squares = reduce_block<Sum>(squares, sums[1]);
  const float inverse = 1.0F / sqrtf(squares * inverse_width + static_cast<float>(args.epsilon));
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int64_t c = column_of<N>(p);
    if (c >= width) continue;
    float weight[N], bias[N] = {};
    load(args.weight + c, weight);
    if (args.bias != nullptr) load(args.bias + c, bias);
#pragma unroll
    for (int k = 0; k < N; ++k) x[p][k] = (x[p][k] - mean) * inverse * weight[k] + bias[k];
    store(x[p], args.output + first + c);
  }
  if (threadIdx.x == 0) {
    if (layer) args.mean[t] = mean;
    args.inverse_deviation[t] = inverse;
  }
}

// With n = (x - mean) * inverse and g = d_output * weight: d_x = inverse * (g - average(g) - n * average(g n)), where
// the root-mean-square norm lacks the first average.
template <typename T, int N, int P>
__global__ void __launch_bounds__(kMaxBlock) norm_backward_input_kernel(NormBackwardArgs<T> args, float inverse_width) {
  __shared__ float sums[2][32];
  const int64_t width = args.width, t = blockIdx.x, first = t * width;
  const bool layer = args.norm == Norm::layer;
  const float mean = layer ? args.mean[t] : 0.0F, inverse = args.inverse_deviation[t];
  float n[P][N], g[P][N];
  float sum = 0.0F, product = 0.0F;
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int64_t c = column_of<N>(p);
    if (c >= width) continue;
    float weight[N];
    load(args.input + first + c, n[p]);
    load(args.d_output + first + c, g[p]);
    load(args.weight + c, weight);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      n[p][k] = (n[p][k] - mean) * inverse;
      g[p][k] *= weight[k];
      sum += g[p][k];
      product += g[p][k] * n[p][k];
    }
  }
  const float average = layer ? reduce_block<Sum>(sum, sums[0]) * inverse_width : 0.0F;
  product = reduce_block<Sum>(product, sums[1]) * inverse_width;
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int64_t c = column_of<N>(p);
    if (c >= width) continue;
    float kept[N] = {};
    if (args.accumulate) load(args.d_input + first + c, kept);
#pragma unroll
    for (int k = 0; k < N; ++k) kept[k] += inverse * (g[p][k] - average - n[p][k] * product);
    store(kept, args.d_input + first + c);
  }
}

// What norm_backward_parameters sums over rows.
template <typename T>
struct NormTerms {
  static constexpr int kSums = 2;
  NormBackwardArgs<T> args;

  template <int N>
  __device__ void add(int64_t t, int64_t c, float (&sums)[kSums][N]) const {
    float x[N], gradient[N];
    load(args.input + t * args.width + c, x);
    load(args.d_output + t * args.width + c, gradient);
    const float mean = args.norm == Norm::layer ? args.mean[t] : 0.0F, inverse = args.inverse_deviation[t];
#pragma unroll
    for (int k = 0; k < N; ++k) {
      sums[0][k] += gradient[k] * ((x[k] - mean) * inverse);
      sums[1][k] += gradient[k];
    }
  }
};

// launches `one` for narrow rows, `many` for wide ones: threads to hold a row of `width` in packets of N.
template <typename Kernel, typename... Arguments>
void launch_rows(Kernel one, Kernel many, int per_packet, int packets, GridSize rows, int64_t width,
                 cudaStream_t stream, const Arguments&... arguments) {
  QUINTET_CHECK(width > 0 && width <= int64_t{kMaxBlock} * packets * per_packet, "a norm over {} elements", width);
  const int64_t wanted = ceil_div(width, per_packet);
  const bool narrow_row = wanted <= kMaxBlock;
  const int64_t threads = round_up(narrow_row ? wanted : ceil_div(wanted, packets), 32);
  launch(narrow_row ? one : many, rows, narrow<unsigned>(threads), 0, stream, arguments...);
}

}  // namespace

template <typename T>
void add_norm_forward(const AddNormForwardArgs<T>& args, cudaStream_t stream) {
  const DropoutKey key = key_of(args.dropout);
  const float inverse_width = static_cast<float>(1.0 / static_cast<double>(args.width));
  constexpr int kWide = kPacket<T>;
  if (in_packets(args.width, args.residual, args.branch, args.residual_output, args.weight, args.bias, args.output)) {
    launch_rows(add_norm_forward_kernel<T, kWide, 1>, add_norm_forward_kernel<T, kWide, kPerThread / kWide>, kWide,
                kPerThread / kWide, args.rows, args.width, stream, args, key, inverse_width);
  } else {
    launch_rows(add_norm_forward_kernel<T, 1, 1>, add_norm_forward_kernel<T, 1, kSinglesPerThread>, 1,
                kSinglesPerThread, args.rows, args.width, stream, args, key, inverse_width);
  }
}

template <typename T>
void norm_backward_input(const NormBackwardArgs<T>& args, cudaStream_t stream) {
  const float inverse_width = static_cast<float>(1.0 / static_cast<double>(args.width));
  constexpr int kWide = kPacket<T>;
  if (in_packets(args.width, args.input, args.weight, args.d_output, args.d_input)) {
    launch_rows(norm_backward_input_kernel<T, kWide, 1>, norm_backward_input_kernel<T, kWide, kPerThread / kWide>,
                kWide, kPerThread / kWide, args.rows, args.width, stream, args, inverse_width);
  } else {
    launch_rows(norm_backward_input_kernel<T, 1, 1>, norm_backward_input_kernel<T, 1, kSinglesPerThread>, 1,
                kSinglesPerThread, args.rows, args.width, stream, args, inverse_width);
  }
}

int64_t norm_backward_workspace(int64_t rows, int64_t width) { return column_sums_workspace(rows, width, 2); }

template <typename T, typename G>
void norm_backward_parameters(const NormBackwardArgs<T>& args, G* weight_gradient, G* bias_gradient, void* workspace,
                              cudaStream_t stream) {
  add_column_sums<T, G>(NormTerms<T>{args}, args.rows, args.width, in_packets(args.width, args.input, args.d_output),
                        {weight_gradient, bias_gradient}, workspace, stream);
}

#define QUINTET_INSTANTIATE(T)                                                 \
  template void add_norm_forward(const AddNormForwardArgs<T>&, cudaStream_t);  \
  template void norm_backward_input(const NormBackwardArgs<T>&, cudaStream_t); \
  template void norm_backward_parameters(const NormBackwardArgs<T>&, float*, float*, void*, cudaStream_t);
QUINTET_INSTANTIATE(float)
QUINTET_INSTANTIATE(bfloat16)
template void norm_backward_parameters(const NormBackwardArgs<bfloat16>&, bfloat16*, bfloat16*, void*, cudaStream_t);
#undef QUINTET_INSTANTIATE

}  // namespace quintet::kernels::cuda
