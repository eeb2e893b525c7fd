// Causal self-attention with grouped heads (Vaswani et al. 2017; Ainslie et al. 2023), heads split over tp, sequences
// over cp.
#pragma once

#include <string>

#include "lib/config/config.h"
#include "lib/model/linear.h"
#include "lib/model/pass.h"
#include "lib/model/rope.h"
#include "lib/parallel/context_attention.h"

namespace quintet::model {

// A projection to heads, [T, heads * D], before and after norm and rotation; one tensor where nothing is normed.
struct HeadsSaved {
  Tensor projected;
  Tensor ready;        // what attention reads
  Tensor inverse_rms;  // [T, heads], with qk_norm
};

struct AttentionSaved {
  Tensor input;  // [T', H]
  HeadsSaved query, key;
  Tensor value;        // [T, N_kv * D]
  Tensor context;      // [T, N * D]: softmax(q k^T) v
  Tensor log_sum_exp;  // [T * N]
};

class Attention {
 public:
  // `name` is "layers.I.attention".
  Attention(parallel::ParameterStore& store, std::string name, const config::Model& config, const RopeTable& rope);

  // x: [T', H], kept by the caller; output: [T', H].
  void forward(Pass& pass, Tensor x, Tensor output, AttentionSaved& saved) const;
  void backward(Pass& pass, Tensor d_output, Tensor d_x, const AttentionSaved& saved) const;

 private:
  parallel::ContextAttention core(Pass& pass) const;
  void project(Pass& pass, Tensor x, const Linear& linear, const parallel::Parameter* scale, int64_t heads,
               HeadsSaved& saved) const;
  // Turns the gradient of `ready` into that of `projected`, in place.
  void turn_back(Pass& pass, const HeadsSaved& saved, const parallel::Parameter* scale, int64_t heads,
                 Tensor gradient) const;

  std::string name_;
  const RopeTable& rope_;
  int64_t head_dim_;
  int64_t heads_, key_heads_;  // of this rank
  double epsilon_;
  Linear query_, key_, value_, output_;
  const parallel::Parameter* query_norm_ = nullptr;
  const parallel::Parameter* key_norm_ = nullptr;
};

}  // namespace quintet::model
