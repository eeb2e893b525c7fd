// Attention's passes over rows. attention_rows: the sums of output * d_output, which backward needs as the average
// gradient of a row's weights; reads 2 rows, writes 2 floats. attention_merge: reads a row of T and one of fp32, writes
// one of fp32. As many lanes as a row has packets of 16 bytes, up to a warp, take a row: the floor is those bytes over
// the copy bandwidth. Rows that are not made of packets go element by element.
#include <algorithm>

#include "kernels/cuda/attention_mask.h"
#include "kernels/cuda/elements.h"

namespace quintet::kernels::cuda {
namespace {

constexpr unsigned kThreads = 256;

// Where the running thread's lanes stand: row `q` of a head; with its 64-bit index within [batch, heads, rows].
struct RowOfLanes {
  int64_t b, head, q, index;
  int lane;
  bool inside;

  __device__ RowOfLanes(const AttentionShape& shape, int64_t rows, int lanes) {
    index = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / lanes;
    lane = static_cast<int>(threadIdx.x) % lanes;
    inside = index < shape.batch * shape.heads * rows;
    q = index % rows;
    head = index / rows % shape.heads;
    b = index / rows / shape.heads;
  }
};

template <typename T, typename Gradient, int N>
__global__ void __launch_bounds__(kThreads)
    attention_rows_kernel(AttentionBackwardArgs<T, Gradient> args, AttentionRows rows, int lanes) {
  const RowOfLanes at(args.shape, rows.padded, lanes);
  const bool real = at.inside && at.q < args.shape.query_rows;
  float sum = 0.0F;
  if (real) {
    const T* output = args.output.at(at.b, at.head) + at.q * args.output.row_stride;
    const T* d_output = args.d_output.at(at.b, at.head) + at.q * args.d_output.row_stride;
    const AttentionMask mask(args.shape, at.b);
    const auto q = static_cast<int>(at.q);
    Gradient* cleared = nullptr;
    if (!args.accumulate && mask.begin(q) >= mask.end(q)) {
      cleared = args.d_query.at(at.b, at.head) + at.q * args.d_query.row_stride;
    }
    for (int64_t i = int64_t{at.lane} * N; i < args.shape.head_dim; i += int64_t{lanes} * N) {
      float x[N], d[N];
      load(output + i, x);
      load(d_output + i, d);
#pragma unroll
      for (int k = 0; k < N; ++k) sum += x[k] * d[k];
      if (cleared == nullptr) continue;
#pragma unroll
      for (int k = 0; k < N; ++k) cleared[i + k] = Gradient{};
    }
  }
  for (int offset = lanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(kAllLanes, sum, offset);
  if (!at.inside || at.lane != 0) return;
  float reference = infinity();
  if (real) {
    const float log_sum_exp = args.log_sum_exp[(at.b * args.shape.heads + at.head) * args.shape.query_rows + at.q];
    if (log_sum_exp != -infinity()) reference = log_sum_exp * kLog2E;
  }
  rows.of_heads[at.index] = make_float2(reference, real ? sum : 0.0F);
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreads) attention_merge_kernel(AttentionMergeArgs<T> args, int lanes) {
  const RowOfLanes at(args.shape, args.shape.query_rows, lanes);
  float before = 0.0F, further = 0.0F;
  if (at.inside) {
    before = args.log_sum_exp[at.index];
    further = args.partial_log_sum_exp[at.index];
  }
  __syncwarp();  // all lanes of a row have read what one of them will write
  if (!at.inside) return;
  const bool begun = before != -infinity(), adds = further != -infinity();
  const float larger = before > further ? before : further;
  const float kept = begun ? expf(before - larger) : 0.0F, added = adds ? expf(further - larger) : 0.0F;
  const float sum = kept + added;
  const float inverse = begun || adds ? 1.0F / sum : 0.0F;
  const T* partial = args.partial_output.at(at.b, at.head) + at.q * args.partial_output.row_stride;
  float* output = args.output.at(at.b, at.head) + at.q * args.output.row_stride;
  for (int64_t i = int64_t{at.lane} * N; i < args.shape.head_dim; i += int64_t{lanes} * N) {
    float x[N] = {}, y[N] = {};
    if (begun) load_floats(output + i, x);
    if (adds) load(partial + i, y);
#pragma unroll
    for (int k = 0; k < N; ++k) x[k] = (x[k] * kept + y[k] * added) * inverse;
#pragma unroll
    for (int k = 0; k < N; k += kPacket<float>) {
      if constexpr (N == 1) {
        output[i] = x[k];
      } else {
        *reinterpret_cast<float4*>(output + i + k) = make_float4(x[k], x[k + 1], x[k + 2], x[k + 3]);
      }
    }
  }
  if (at.lane == 0) args.log_sum_exp[at.index] = begun || adds ? larger + logf(sum) : -infinity();
}

// Whether each row of a head begins at a 16-byte boundary.
template <typename T>
bool aligned(const HeadTensor<T>& tensor) {
  return in_packets(tensor.row_stride, tensor.data) && in_packets(tensor.head_stride, tensor.data) &&
         in_packets(tensor.batch_stride, tensor.data);
}

// A power of two, at most 32: lanes for a row.
int lanes_for(int64_t head_dim, int per_lane) {
  int lanes = 1;
  while (lanes < 32 && int64_t{lanes} * per_lane < head_dim) lanes *= 2;
  return lanes;
}

}  // namespace

void check_shape(const AttentionShape& shape) {
  QUINTET_CHECK(shape.head_dim > 0 && shape.head_dim <= kMaxHeadDim, "attention with heads of {}", shape.head_dim);
  QUINTET_CHECK(shape.key_heads > 0 && shape.heads % shape.key_heads == 0, "{} heads share {} key heads", shape.heads,
                shape.key_heads);
  constexpr int64_t kMaxRows = int64_t{1} << 30;  // sums of two fit an int
  QUINTET_CHECK(shape.query_rows < kMaxRows && shape.key_rows < kMaxRows, "attention over {} and {} rows",
                shape.query_rows, shape.key_rows);
  QUINTET_CHECK(shape.heads < 65536 && shape.batch < 65536, "{} heads, {} batch entries", shape.heads, shape.batch);
}

template <typename T, typename Gradient>
AttentionRows attention_rows(const AttentionBackwardArgs<T, Gradient>& args, cudaStream_t stream) {
  const int64_t padded = round_up(args.shape.query_rows, kRowPadding);
  const int64_t count = args.shape.batch * args.shape.heads * padded;
  const AttentionRows rows = {static_cast<float2*>(args.workspace), padded};
  const bool packets = args.shape.head_dim % kPacket<T> == 0 && aligned(args.output) && aligned(args.d_output);
  const int lanes = lanes_for(args.shape.head_dim, packets ? kPacket<T> : 1);
  launch(packets ? attention_rows_kernel<T, Gradient, kPacket<T>> : attention_rows_kernel<T, Gradient, 1>,
         ceil_div(count * lanes, kThreads), kThreads, 0, stream, args, rows, lanes);
  return rows;
}

template <typename T>
void attention_merge(const AttentionMergeArgs<T>& args, cudaStream_t stream) {
  const bool packets = args.shape.head_dim % kPacket<T> == 0 && aligned(args.partial_output) && aligned(args.output);
  const int lanes = lanes_for(args.shape.head_dim, packets ? kPacket<T> : 1);
  const int64_t count = args.shape.batch * args.shape.heads * args.shape.query_rows;
  launch(packets ? attention_merge_kernel<T, kPacket<T>> : attention_merge_kernel<T, 1>,
         ceil_div(count * lanes, kThreads), kThreads, 0, stream, args, lanes);
}

#define QUINTET_INSTANTIATE(T)                                                             \
  template AttentionRows attention_rows(const AttentionBackwardArgs<T, T>&, cudaStream_t); \
  template void attention_merge(const AttentionMergeArgs<T>&, cudaStream_t);
QUINTET_INSTANTIATE(float)
QUINTET_INSTANTIATE(bfloat16)
template AttentionRows attention_rows(const AttentionBackwardArgs<bfloat16, float>&, cudaStream_t);
#undef QUINTET_INSTANTIATE

}  // namespace quintet::kernels::cuda
