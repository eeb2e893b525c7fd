// Attention whose sequences are split over cp, by the method of parallel.context.method. Every method reads and writes
// the rows of its own rank only, so that what backward needs takes 1/cp of the memory; what belongs to other ranks
// travels again in backward.
#pragma once

#include <cstdint>
#include <string>

#include "lib/device/memory.h"
#include "lib/parallel/context_region.h"

namespace quintet::parallel {

// One attention layer on this rank. T: its rows, chunk by chunk; N, N_kv: its heads.
struct ContextAttention {
  device::Device& device;
  device::Arena& scratch;
  const ContextRegion& region;
  std::string name;  // for reports: "layers.3.attention"
  int64_t sequences = 0;
  int64_t heads = 0, key_heads = 0, head_dim = 0;
  Tensor document_starts;      // i32 [T], or absent
  Tensor all_document_starts;  // i32 [B * S], where a method sees whole sequences

  int64_t rows() const { return sequences * region.local_positions(); }

  // query, output: [T, N * D]; key, value: [T, N_kv * D]; log_sum_exp: [T * N], in the method's own order.
  void forward(Tensor query, Tensor key, Tensor value, Tensor output, Tensor log_sum_exp) const;

  struct Backward {
    Tensor query, key, value, output, log_sum_exp, d_output;
    Tensor d_query, d_key, d_value;  // written
  };
  void backward(const Backward& operands) const;
};

}  // namespace quintet::parallel
