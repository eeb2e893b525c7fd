// Attention over bf16: head by head through fp32, so that a result is rounded once, or left in fp32 where it is a part
// of one. A thread holds one head in fp32, which is linear in the sequence as well.
#include <algorithm>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/scratch.h"
#include "lib/base/parallel.h"

namespace quintet::kernels::cpu {

namespace {

// One head of one batch entry in fp32, [rows, head_dim].
class WideHead {
 public:
  void hold(int64_t rows, int64_t head_dim) {
    rows_ = rows, head_dim_ = head_dim;
    data_ = scratch_.get(rows * head_dim);
  }
  template <typename T>
  void read(const HeadTensor<T>& tensor, int64_t batch, int64_t head, int64_t rows, int64_t head_dim) {
    hold(rows, head_dim);
    for (int64_t row = 0; row < rows; ++row) {
      const T* from = tensor.at(batch, head) + row * tensor.row_stride;
      float* to = data_ + row * head_dim;
#pragma omp simd
      for (int64_t i = 0; i < head_dim; ++i) to[i] = widen(from[i]);
    }
  }
  template <typename T>
  void write(const HeadTensor<T>& tensor, int64_t batch, int64_t head) const {
    for (int64_t row = 0; row < rows_; ++row) {
      const float* from = data_ + row * head_dim_;
      T* to = tensor.at(batch, head) + row * tensor.row_stride;
#pragma omp simd
      for (int64_t i = 0; i < head_dim_; ++i) to[i] = round_to<T>(from[i]);
    }
  }
  void clear() { std::fill_n(data_, rows_ * head_dim_, 0.0F); }

  HeadTensor<float> tensor() const { return HeadTensor<float>::contiguous(data_, rows_, 1, head_dim_); }
  HeadTensor<const float> values() const { return HeadTensor<const float>::contiguous(data_, rows_, 1, head_dim_); }

 private:
  Scratch<float> scratch_;
  float* data_ = nullptr;
  int64_t rows_ = 0, head_dim_ = 0;
};

// The shape of one head against its key head.
AttentionShape one_head(const AttentionShape& shape, int64_t b) {
  AttentionShape one = shape;
  one.batch = one.heads = one.key_heads = 1;
  if (shape.document_starts != nullptr) one.document_starts += b * shape.query_rows;
  return one;
}

struct ForwardHeads {
  WideHead query, key, value, output;
};

struct BackwardHeads {
  WideHead query, key, value, output, d_output, d_query, d_key, d_value;
};

template <typename Gradient>
void backward_of_key_head(const AttentionBackwardArgs<bfloat16, Gradient>& args, int64_t b, int64_t key_head,
                          BackwardHeads& wide) {
  const AttentionShape& shape = args.shape;
  const int64_t group = shape.heads / shape.key_heads;
  // What a gradient begins with: what is there, or nothing.
  const auto begin = [&](WideHead& gradient, const HeadTensor<Gradient>& tensor, int64_t head, int64_t rows) {
    if (args.accumulate) {
      gradient.read(tensor, b, head, rows, shape.head_dim);
    } else {
      gradient.hold(rows, shape.head_dim);
      gradient.clear();
    }
  };
  wide.key.read(args.key, b, key_head, shape.key_rows, shape.head_dim);
  wide.value.read(args.value, b, key_head, shape.key_rows, shape.head_dim);
  begin(wide.d_key, args.d_key, key_head, shape.key_rows);
  begin(wide.d_value, args.d_value, key_head, shape.key_rows);
  for (int64_t head = key_head * group; head < (key_head + 1) * group; ++head) {
    wide.query.read(args.query, b, head, shape.query_rows, shape.head_dim);
    wide.output.read(args.output, b, head, shape.query_rows, shape.head_dim);
    wide.d_output.read(args.d_output, b, head, shape.query_rows, shape.head_dim);
    begin(wide.d_query, args.d_query, head, shape.query_rows);
    attention_backward<float>({.shape = one_head(shape, b),
                               .query = wide.query.values(),
                               .key = wide.key.values(),
                               .value = wide.value.values(),
                               .output = wide.output.values(),
                               .d_output = wide.d_output.values(),
                               .log_sum_exp = args.log_sum_exp + (b * shape.heads + head) * shape.query_rows,
                               .d_query = wide.d_query.tensor(),
                               .d_key = wide.d_key.tensor(),
                               .d_value = wide.d_value.tensor(),
                               .accumulate = true,
                               .threads = 1});
    wide.d_query.write(args.d_query, b, head);
  }
  wide.d_key.write(args.d_key, b, key_head);
  wide.d_value.write(args.d_value, b, key_head);
}

template <typename Output>
void forward(const AttentionForwardArgs<bfloat16, Output>& args) {
  const AttentionShape& shape = args.shape;
  parallel_for(args.threads, shape.batch * shape.heads, 1, [&](int64_t begin, int64_t end) {
    thread_local ForwardHeads wide;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / shape.heads, head = i % shape.heads, key_head = head * shape.key_heads / shape.heads;
      wide.query.read(args.query, b, head, shape.query_rows, shape.head_dim);
      wide.key.read(args.key, b, key_head, shape.key_rows, shape.head_dim);
      wide.value.read(args.value, b, key_head, shape.key_rows, shape.head_dim);
      wide.output.hold(shape.query_rows, shape.head_dim);
      attention_forward<float>({.shape = one_head(shape, b),
                                .query = wide.query.values(),
                                .key = wide.key.values(),
                                .value = wide.value.values(),
                                .output = wide.output.tensor(),
                                .log_sum_exp = args.log_sum_exp + i * shape.query_rows,
                                .threads = 1});
      wide.output.write(args.output, b, head);
    }
  });
}

template <typename Gradient>
void backward(const AttentionBackwardArgs<bfloat16, Gradient>& args) {
  const AttentionShape& shape = args.shape;
  parallel_for(args.threads, shape.batch * shape.key_heads, 1, [&](int64_t begin, int64_t end) {
    thread_local BackwardHeads wide;
    for (int64_t i = begin; i < end; ++i) backward_of_key_head(args, i / shape.key_heads, i % shape.key_heads, wide);
  });
}

}  // namespace

template <>
void attention_forward(const AttentionForwardArgs<bfloat16>& args) {
  forward(args);
}
void attention_forward(const AttentionForwardArgs<bfloat16, float>& args) { forward(args); }

template <>
void attention_backward(const AttentionBackwardArgs<bfloat16>& args) {
  backward(args);
}
void attention_backward(const AttentionBackwardArgs<bfloat16, float>& args) { backward(args); }

}  // namespace quintet::kernels::cpu
