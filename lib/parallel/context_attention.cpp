#include "lib/parallel/context_attention.h"

#include "lib/parallel/context_methods.h"

namespace quintet::parallel {
namespace {

Tensor whole_sequences(const ContextAttention& layer, Tensor rows, int64_t heads) {
  return rows.reshaped({layer.sequences, layer.region.sequence_length(), heads, layer.head_dim});
}

Tensor whole_starts(const ContextAttention& layer) {
  if (!layer.document_starts) return {};
  return layer.document_starts.reshaped({layer.sequences, layer.region.sequence_length()});
}

Tensor whole_statistics(const ContextAttention& layer, Tensor statistics) {
  return statistics.reshaped({layer.sequences, layer.heads, layer.region.sequence_length()});
}

struct Methods {
  decltype(&ring_forward) forward;
  decltype(&ring_backward) backward;
};

Methods methods_of(const ContextRegion& region) {
  switch (region.config().method) {
    case config::ContextMethod::ring: return {ring_forward, ring_backward};
    case config::ContextMethod::all_gather: return {gathered_forward, gathered_backward};
    case config::ContextMethod::ulysses: return {ulysses_forward, ulysses_backward};
  }
  QUINTET_CHECK(false, "context method {}", static_cast<int>(region.config().method));
}

}  // namespace

void ContextAttention::forward(Tensor query, Tensor key, Tensor value, Tensor output, Tensor log_sum_exp) const {
  if (region.ranks() > 1) return methods_of(region).forward(*this, query, key, value, output, log_sum_exp);
  device.attention_forward({.query = whole_sequences(*this, query, heads),
                            .key = whole_sequences(*this, key, key_heads),
                            .value = whole_sequences(*this, value, key_heads),
                            .document_starts = whole_starts(*this),
                            .output = whole_sequences(*this, output, heads),
                            .log_sum_exp = whole_statistics(*this, log_sum_exp)});
}

void ContextAttention::backward(const Backward& operands) const {
  if (region.ranks() > 1) return methods_of(region).backward(*this, operands);
  device.attention_backward({.query = whole_sequences(*this, operands.query, heads),
                             .key = whole_sequences(*this, operands.key, key_heads),
                             .value = whole_sequences(*this, operands.value, key_heads),
                             .document_starts = whole_starts(*this),
                             .output = whole_sequences(*this, operands.output, heads),
                             .log_sum_exp = whole_statistics(*this, operands.log_sum_exp),
                             .d_output = whole_sequences(*this, operands.d_output, heads),
                             .d_query = whole_sequences(*this, operands.d_query, heads),
                             .d_key = whole_sequences(*this, operands.d_key, key_heads),
                             .d_value = whole_sequences(*this, operands.d_value, key_heads)});
}

Tensor chunk_of(const ContextAttention& layer, Tensor rows, size_t index, int64_t heads) {
  const int64_t length = layer.region.chunks()[index].length, count = layer.sequences * length;
  return rows.rows(static_cast<int64_t>(index) * count, count)
      .reshaped({layer.sequences, length, heads, layer.head_dim});
}

Tensor chunk_statistics(const ContextAttention& layer, Tensor statistics, size_t index) {
  const int64_t length = layer.region.chunks()[index].length, count = layer.sequences * layer.heads * length;
  return statistics.rows(static_cast<int64_t>(index) * count, count).reshaped({layer.sequences, layer.heads, length});
}

Tensor chunk_starts(const ContextAttention& layer, size_t index) {
  if (!layer.document_starts) return {};
  const int64_t length = layer.region.chunks()[index].length, count = layer.sequences * length;
  return layer.document_starts.rows(static_cast<int64_t>(index) * count, count).reshaped({layer.sequences, length});
}

WideSum::WideSum(const ContextAttention& layer, DType arithmetic, Tensor to)
    : sum(to.dtype() == arithmetic ? to : layer.scratch.allocate(arithmetic, to.shape())), result(to) {}

void WideSum::round(device::Device& device) const {
  if (sum.data() != result.data()) device.copy(sum, result);
}

}  // namespace quintet::parallel
