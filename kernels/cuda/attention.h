// Causal attention with online softmax (Dao 2023, FlashAttention-2): memory is linear in the sequence.
// Query row q of batch entry b sees key row k when first_key + k <= first_query + q and, with document starts,
// first_key + k >= document_starts[b, q]. Query head h uses key head h * key_heads / heads.
// T: float with any head_dim up to 256; bfloat16 with multiples of 8 up to 256, rows at 16-byte boundaries. Fewer than
// 2^30 rows and at most 65535 heads and batch entries; offsets are 64-bit. Others are refused by a CheckFailure.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace quintet::kernels::cuda {

inline constexpr int64_t kMaxHeadDim = 256;

// A [batch, rows, heads, head_dim] tensor; strides in elements, head_dim is contiguous.
template <typename T>
struct HeadTensor {
  T* data = nullptr;
  int64_t batch_stride = 0, row_stride = 0, head_stride = 0;

  constexpr T* at(int64_t batch, int64_t head) const { return data + batch * batch_stride + head * head_stride; }
  // The contiguous [batch, rows, heads, head_dim].
  static HeadTensor contiguous(T* data, int64_t rows, int64_t heads, int64_t head_dim) {
    return {data, rows * heads * head_dim, heads * head_dim, head_dim};
  }
};

struct AttentionShape {
  int64_t batch = 0, heads = 0, key_heads = 0;  // key_heads divides heads
  int64_t query_rows = 0, key_rows = 0, head_dim = 0;
  int64_t first_query = 0, first_key = 0;    // global positions of row 0
  const int32_t* document_starts = nullptr;  // [batch, query_rows], or null
};

// output = softmax(query key^T / sqrt(head_dim)) value over the keys seen, log_sum_exp their natural logarithm of the
// denominator. A query that sees nothing gives output 0 and log_sum_exp -inf. Output: T or float, where it is a part of
// what is rounded later.
template <typename T, typename Output = T>
struct AttentionForwardArgs {
  AttentionShape shape;
  HeadTensor<const T> query, key, value;
  HeadTensor<Output> output;
  float* log_sum_exp = nullptr;  // [batch, heads, query_rows]
};
template <typename T, typename Output>
void attention_forward(const AttentionForwardArgs<T, Output>& args, cudaStream_t stream);

// Gradients are written, or added to with `accumulate`. output and log_sum_exp are those over all keys, also where
// `key` holds only some of them: contributions of blocks of keys then add up to the whole gradient. Gradient: T or
// float.
template <typename T, typename Gradient = T>
struct AttentionBackwardArgs {
  AttentionShape shape;
  HeadTensor<const T> query, key, value, output, d_output;
  const float* log_sum_exp = nullptr;
  HeadTensor<Gradient> d_query, d_key, d_value;
  bool accumulate = false;
  void* workspace = nullptr;  // attention_backward_workspace<T>(shape) bytes, 16-byte aligned
};
// Two floats for each row and head; with bfloat16 also its gradient in fp32.
template <typename T>
int64_t attention_backward_workspace(const AttentionShape& shape);
template <typename T, typename Gradient>
void attention_backward(const AttentionBackwardArgs<T, Gradient>& args, cudaStream_t stream);

// Merges attention over further keys into attention over those before: the running output stays in fp32 and is read
// only where its log_sum_exp is not -inf, with which the first merge begins. Of shape, the query's part is used.
template <typename T>
struct AttentionMergeArgs {
  AttentionShape shape;
  HeadTensor<const T> partial_output;
  const float* partial_log_sum_exp = nullptr;
  HeadTensor<float> output;
  float* log_sum_exp = nullptr;
};
template <typename T>
void attention_merge(const AttentionMergeArgs<T>& args, cudaStream_t stream);

}  // namespace quintet::kernels::cuda
