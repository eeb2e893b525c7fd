// Causal self-attention with grouped heads (Vaswani et al. 2017; Ainslie et al. 2023), heads split over tp, sequences
// over cp.
#pragma once

#include <string>

#include "lib/config/config.h"
#include "lib/model/backward_parts.h"
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
  Tensor context;      // [T, N * D]: softmax(q k^T) v; with log_sum_exp not kept under selective recomputation
  Tensor log_sum_exp;  // [T * N]
};

// What the weight part needs of the input part. Gradients of heads are [T, heads * D].
struct AttentionGradients {
  GatheredRows d_output, input;
  Tensor context;                     // [T, N * D]
  Tensor d_query, d_key, d_value;     // of the projections
  Tensor d_query_ready, d_key_ready;  // of what attention reads; with qk_norm, else the same
  comm::Handle reduced;               // d_x
};

class Attention {
 public:
  // `name` is "layers.I.attention".
  Attention(parallel::ParameterStore& store, std::string name, const config::Model& config, const RopeTable& rope);

  // x: [T', H], kept by the caller; output: [T', H].
  void forward(Pass& pass, Tensor x, Tensor output, AttentionSaved& saved) const;
  // d_output: [T', H], lives until the weight part; d_x: [T', H], there once `reduced` has been waited for.
  AttentionGradients backward_input(Pass& pass, Tensor d_output, Tensor d_x, const AttentionSaved& saved) const;
  void backward_weight(Pass& pass, const AttentionSaved& saved, AttentionGradients& gradients) const;

  const std::string& name() const { return name_; }

 private:
  parallel::ContextAttention core(Pass& pass) const;
  // softmax(q k^T) v of what `saved` has of both.
  void core_forward(Pass& pass, const AttentionSaved& saved, Tensor context, Tensor log_sum_exp) const;
  void project(Pass& pass, Tensor x, const Linear& linear, const parallel::Parameter* scale, int64_t heads,
               HeadsSaved& saved) const;
  // The gradient of `projected`, given that of `ready`: in place, but for a norm, whose weight part reads the latter.
  Tensor turn_back(Pass& pass, const HeadsSaved& saved, const parallel::Parameter* scale, int64_t heads,
                   Tensor d_ready) const;
  void scale_gradient(Pass& pass, const HeadsSaved& saved, const parallel::Parameter& scale, int64_t heads,
                      Tensor d_ready) const;

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
