// Forward: a block lies in one token's row and copies it 16 bytes a thread; moves 2 elements each, 3 with positions.
// Backward uses no atomics: a table's rows are dealt to kGroups groups. A block owns one group and some columns: it
// picks its group's tokens out of all in ascending order, sorts them by row in shared memory, adds up each row in
// registers and then adds that to the gradient, which no other block touches. Where a group's tokens are more than a
// batch, the block takes fewer of its rows at a time; those of a single row come batch after batch. Moves 1 element
// each, and twice the gradient of each row that occurs. Floors: those bytes over the copy bandwidth; the most frequent
// token's row is added by one block and may take longer. Twin: kernels/cpu/embedding.cpp.
#include "kernels/cuda/embedding.h"

#include "kernels/cuda/elements.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tiles.h"

namespace quintet::kernels::cuda {
namespace {

template <typename T, int N>
__global__ void __launch_bounds__(kTileThreads)
    embedding_forward_kernel(EmbeddingArgs args, unsigned per_row, const T* table, const T* position_table, T* output) {
  const auto [t, column] = place_in_rows<N>(per_row);
  if (column >= args.width) return;
  const int64_t row = args.tokens[t] - args.vocabulary_start;
  float x[N] = {};
  if (row >= 0 && row < args.table_rows) load(table + row * args.width + column, x);
  if (position_table != nullptr) {
    float added[N];
    load(position_table + args.positions[t] * args.width + column, added);
#pragma unroll
    for (int k = 0; k < N; ++k) x[k] += added[k];
  }
  store(x, output + t * args.width + column);
}

constexpr int64_t kGroups = 128;
constexpr int kBatch = 1024;
constexpr unsigned kScatterThreads = 256;
constexpr uint64_t kNone = ~uint64_t{0};

// Sorts `count` keys in shared memory, a power of two (Batcher 1968, bitonic).
__device__ void sort_batch(uint64_t* keys, unsigned count) {
  for (unsigned size = 2; size <= count; size *= 2) {
    for (unsigned stride = size / 2; stride > 0; stride /= 2) {
      __syncthreads();
      for (unsigned pair = threadIdx.x; pair < count / 2; pair += kScatterThreads) {
        const unsigned low = 2 * pair - pair % stride, high = low + stride;
        const bool ascending = (low & size) == 0;
        const uint64_t a = keys[low], b = keys[high];
        if ((a > b) == ascending) {
          keys[low] = b;
          keys[high] = a;
        }
      }
    }
  }
  __syncthreads();
}

// Rows group + kGroups * i for i in [begin, end).
struct RowsOfGroup {
  int64_t begin, end;

  __device__ bool hold(int64_t row) const {
    return row >= 0 && row % kGroups == blockIdx.x && row / kGroups >= begin && row / kGroups < end;
  }
};

// Fills a batch with (row, t) of these rows, in ascending t from `next` on, as long as a whole step fits; `next`
// becomes the first token that was not looked at. Returns how many they are. All threads call.
__device__ int fill_batch(uint64_t* keys, const RowsOfGroup& rows, const int32_t* indices, int64_t start, int64_t count,
                          int64_t& next) {
  __shared__ int warp_counts[kScatterThreads / 32];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int filled = 0;
  while (next < count && filled + static_cast<int>(kScatterThreads) <= kBatch) {
    const int64_t t = next + threadIdx.x;
    const int64_t row = t < count ? indices[t] - start : -1;
    const bool mine = rows.hold(row);
    const unsigned found = __ballot_sync(0xffffffffU, mine ? 1 : 0);
    if (lane == 0) warp_counts[warp] = __popc(found);
    __syncthreads();
    int before = filled, total = 0;
    for (unsigned w = 0; w < kScatterThreads / 32; ++w) {
      if (w < warp) before += warp_counts[w];
      total += warp_counts[w];
    }
    if (mine)
      keys[before + __popc(found & ((1U << lane) - 1))] = static_cast<uint64_t>(row) << 32 | static_cast<uint64_t>(t);
    filled += total;
    next += kScatterThreads;
    __syncthreads();
  }
  return filled;
}

// gradient[indices[t] - start] += d_output[t] for the rows of group blockIdx.x and the columns of blockIdx.y.
template <typename T, typename G, int N>
__global__ void __launch_bounds__(kScatterThreads)
    embedding_backward_kernel(int64_t count, int64_t width, const int32_t* indices, int64_t start, int64_t rows,
                              const T* d_output, G* gradient) {
  __shared__ uint64_t keys[kBatch];
  const int64_t column = (int64_t{blockIdx.y} * kScatterThreads + threadIdx.x) * N;
  const int64_t rows_of_group = (rows - blockIdx.x + kGroups - 1) / kGroups;
  RowsOfGroup some = {0, rows_of_group};
  int64_t next = 0, open = -1;  // the row whose sums are in registers
  float sums[N] = {};
  const auto close = [&] {
    if (open < 0) return;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      G& to = gradient[open * width + column + k];
      to = from_float<G>(to_float(to) + sums[k]);
      sums[k] = 0.0F;
    }
    open = -1;
  };
  while (some.begin < rows_of_group) {
    const bool begins = next == 0;
    const int filled = fill_batch(keys, some, indices, start, count, next);
    if (begins && next < count && some.end - some.begin > 1) {
      some.end = some.begin + (some.end - some.begin) / 2;
      next = 0;
      continue;
    }
    unsigned sorted = 1;
    while (sorted < static_cast<unsigned>(filled)) sorted *= 2;
    for (unsigned i = static_cast<unsigned>(filled) + threadIdx.x; i < sorted; i += kScatterThreads) keys[i] = kNone;
    sort_batch(keys, sorted);
    for (int i = 0; i < filled && column < width; ++i) {
      const auto row = static_cast<int64_t>(keys[i] >> 32);
      if (row != open) close();
      open = row;
      float x[N];
      load(d_output + static_cast<int64_t>(keys[i] & 0xffffffffU) * width + column, x);
#pragma unroll
      for (int k = 0; k < N; ++k) sums[k] += x[k];
    }
    __syncthreads();
    if (next < count) continue;
    close();
    some = {some.end, rows_of_group};
    next = 0;
  }
}

template <typename T, typename G>
void scatter(int64_t count, int64_t width, const int32_t* indices, int64_t start, int64_t rows, const T* d_output,
             G* gradient, cudaStream_t stream) {
  QUINTET_CHECK(count <= int64_t{1} << 32, "{} tokens in one microbatch", count);
  const auto run = [&](auto kernel, int per_thread) {
    const dim3 grid(narrow<unsigned>(kGroups),
                    narrow<unsigned>(ceil_div(width, int64_t{kScatterThreads} * per_thread)));
    launch(kernel, grid, kScatterThreads, 0, stream, count, width, indices, start, rows, d_output, gradient);
  };
  if (in_packets(width, d_output)) {
    run(embedding_backward_kernel<T, G, kPacket<T>>, kPacket<T>);
  } else {
    run(embedding_backward_kernel<T, G, 1>, 1);
  }
}

}  // namespace

template <typename T>
void embedding_forward(const EmbeddingArgs& args, const T* table, const T* position_table, T* output,
                       cudaStream_t stream) {
  const auto run = [&](auto kernel, int per_thread) {
    const RowTiles tiles(args.width, per_thread);
    launch(kernel, tiles.blocks(args.tokens_count), tiles.threads, 0, stream, args, tiles.per_row, table,
           position_table, output);
  };
  if (in_packets(args.width, table, position_table, output)) {
    run(embedding_forward_kernel<T, kPacket<T>>, kPacket<T>);
  } else {
    run(embedding_forward_kernel<T, 1>, 1);
  }
}

template <typename T, typename G>
void embedding_backward(const EmbeddingArgs& args, const T* d_output, G* table_gradient, G* position_gradient,
                        cudaStream_t stream) {
  scatter(args.tokens_count, args.width, args.tokens, args.vocabulary_start, args.table_rows, d_output, table_gradient,
          stream);
  if (position_gradient == nullptr) return;
  scatter(args.tokens_count, args.width, args.positions, 0, args.position_rows, d_output, position_gradient, stream);
}

#define QUINTET_INSTANTIATE(T)                                                                 \
  template void embedding_forward(const EmbeddingArgs&, const T*, const T*, T*, cudaStream_t); \
  template void embedding_backward(const EmbeddingArgs&, const T*, float*, float*, cudaStream_t);
QUINTET_INSTANTIATE(float)
QUINTET_INSTANTIATE(bfloat16)
template void embedding_backward(const EmbeddingArgs&, const bfloat16*, bfloat16*, bfloat16*, cudaStream_t);
#undef QUINTET_INSTANTIATE

}  // namespace quintet::kernels::cuda
