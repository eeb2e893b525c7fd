// The methods behind ContextAttention, and what they share. Internal to context_attention.cpp and the methods' files.
#pragma once

#include "lib/parallel/context_attention.h"

namespace quintet::parallel {

// Keys and values go round, in ranks - 1 hops; their gradients follow them and go home.
void ring_forward(const ContextAttention& layer, Tensor query, Tensor key, Tensor value, Tensor output,
                  Tensor log_sum_exp);
void ring_backward(const ContextAttention& layer, const ContextAttention::Backward& operands);

// Keys and values of all ranks are gathered; gradients of keys and values are reduce-scattered. (Llama 3, 2024, section
// 3.3.2.)
void gathered_forward(const ContextAttention& layer, Tensor query, Tensor key, Tensor value, Tensor output,
                      Tensor log_sum_exp);
void gathered_backward(const ContextAttention& layer, const ContextAttention::Backward& operands);

// Ranks exchange positions for heads, and back.
void ulysses_forward(const ContextAttention& layer, Tensor query, Tensor key, Tensor value, Tensor output,
                     Tensor log_sum_exp);
void ulysses_backward(const ContextAttention& layer, const ContextAttention::Backward& operands);

// Chunk `index` of this rank's rows, each [heads * D] wide, as [B, L, heads, D].
Tensor chunk_of(const ContextAttention& layer, Tensor rows, size_t index, int64_t heads);
// Its part of [T * N] statistics, as [B, N, L].
Tensor chunk_statistics(const ContextAttention& layer, Tensor statistics, size_t index);
// Its document starts, [B, L]; absent where there are none.
Tensor chunk_starts(const ContextAttention& layer, size_t index);

// A sum in the type of arithmetic on its way to `result`, where it is rounded once: `result` itself if that has the
// type. round() is called when the sum is whole.
struct WideSum {
  Tensor sum, result;

  WideSum(const ContextAttention& layer, DType arithmetic, Tensor result);
  void round(device::Device& device) const;
};

}  // namespace quintet::parallel
