// What attention's kernels share beside their products: which keys a query sees, the checks of arguments, and the pass
// over rows that backward begins with. Include from .cu files.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.h"

namespace quintet::kernels::cuda {

inline constexpr float kLog2E = 1.4426950408889634F, kLn2 = 0.6931471805599453F;

__device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000U); }

// Keys of rows [begin, end).
struct KeyRange {
  int begin, end;
};

// What queries of one batch entry see, in rows of the key tensor.
struct AttentionMask {
  int query_rows, key_rows;
  int lead;  // query q sees key rows below q + lead
  int64_t first_key;
  const int32_t* document_starts;

  __device__ AttentionMask(const AttentionShape& shape, int64_t b)
      : query_rows(static_cast<int>(shape.query_rows)),
        key_rows(static_cast<int>(shape.key_rows)),
        lead(static_cast<int>(max(-shape.query_rows, min(shape.key_rows, shape.first_query + 1 - shape.first_key)))),
        first_key(shape.first_key),
        document_starts(shape.document_starts == nullptr ? nullptr : shape.document_starts + b * shape.query_rows) {}

  __device__ int end(int q) const { return max(0, min(key_rows, q + lead)); }
  __device__ int begin(int q) const {
    if (document_starts == nullptr) return 0;
    const int64_t start = document_starts[min(q, query_rows - 1)] - first_key;
    return static_cast<int>(max(int64_t{0}, min(int64_t{key_rows}, start)));
  }
  __device__ bool sees(int q, int k) const { return k < end(q) && k >= begin(q); }
  // The first query that sees key row k, document starts aside; query_rows if none does.
  __device__ int first_query(int k) const { return max(0, min(query_rows, k + 1 - lead)); }
};

// What a run of queries sees: some query every key outside `hull` not at all, every query all of `common`.
struct VisibleKeys {
  KeyRange hull, common;

  // Of queries [first, first + count), cut at the last one. The same on all lanes of a warp, which all call.
  __device__ VisibleKeys(const AttentionMask& mask, int first, int count) {
    const int last = min(first + count, mask.query_rows) - 1;
    hull = {0, mask.end(last)};
    common = {0, mask.end(first)};
    if (mask.document_starts == nullptr) return;
    int least = mask.key_rows, most = 0;
    for (int q = first + static_cast<int>(threadIdx.x % 32); q <= last; q += 32) {
      const int begin = mask.begin(q);
      least = min(least, begin);
      most = max(most, begin);
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      least = min(least, __shfl_xor_sync(kAllLanes, least, offset));
      most = max(most, __shfl_xor_sync(kAllLanes, most, offset));
    }
    hull.begin = least;
    common.begin = most;
  }

  __device__ bool any(int key, int keys) const { return key < hull.end && key + keys > hull.begin; }
  __device__ bool whole(int key, int keys) const { return key >= common.begin && key + keys <= common.end; }
};

// What backward's workspace begins with: for each batch entry and head, over query rows padded to kRowPadding, x is
// log_sum_exp in powers of two and y is output . d_output. A row that sees nothing or is padding has +inf and 0, by
// which its weights are zero.
inline constexpr int64_t kRowPadding = 128;
struct AttentionRows {
  float2* of_heads;
  int64_t padded;

  constexpr float2* at(int64_t batch, int64_t heads, int64_t head) const {
    return of_heads + (batch * heads + head) * padded;
  }
};
inline int64_t attention_rows_bytes(const AttentionShape& shape) {
  return shape.batch * shape.heads * round_up(shape.query_rows, kRowPadding) * int64_t{sizeof(float2)};
}
// Makes them. Gradients of queries that see nothing become zero, unless they are added to.
template <typename T, typename Gradient>
AttentionRows attention_rows(const AttentionBackwardArgs<T, Gradient>& args, cudaStream_t stream);

// CheckFailure unless sizes are within bounds.
void check_shape(const AttentionShape& shape);

}  // namespace quintet::kernels::cuda
