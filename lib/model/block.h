// A pre-norm transformer block: x + attention(norm(x)), then x + mlp(norm(x)), or a mixture of experts for the MLP.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "lib/model/attention.h"
#include "lib/model/mlp.h"
#include "lib/model/moe.h"
#include "lib/model/norm.h"

namespace quintet::model {

struct BlockSaved {
  NormSaved attention_norm, mlp_norm;
  AttentionSaved attention;
  MlpSaved mlp;
  MoeSaved moe;
};

// What the weight part needs of the input part.
struct BlockGradients {
  AttentionGradients attention;
  MlpGradients mlp;
  MoeGradients moe;
  Tensor d_attention_input, d_mlp_input;  // [T', H]: of what the norms made
};

class Block {
 public:
  Block(parallel::ParameterStore& store, int64_t layer, const config::Config& config, const RopeTable& rope);

  // Moves the balance biases of an MoE layer by a step's loads, [MoE layers of the model, E].
  void balance(device::Device& device, std::span<const int64_t> loads) const;

  // What its user tells pass.units of around its passes; experts are a unit of their own within.
  const parallel::Unit& unit() const { return unit_; }

  // Adds what the router of an MoE layer counted.
  void add_counts(const BlockSaved& saved, RoutingTotals& totals) const;

  // The unit of its experts, or null.
  const parallel::Unit* experts_unit() const { return moe_ ? &moe_->experts_unit() : nullptr; }

  // Leaves the MLP's output as the stream's branch; when recomputing nothing: only what backward needs is made.
  void forward(Pass& pass, Stream& stream, BlockSaved& saved) const;
  // d_residual [T', H]: the gradient of the block's output, turned in place into that of its input. Both parts, layer
  // by layer; where the parts are split only the input part, which leaves `gradients` for the other.
  void backward(Pass& pass, Tensor d_residual, const BlockSaved& saved, BlockGradients& gradients) const;
  void backward_weight(Pass& pass, const BlockSaved& saved, BlockGradients& gradients) const;

 private:
  // Of a branch and its norm. backward(d_branch, d_input): of the layer in between. Returns d_input.
  template <typename Backward>
  Tensor branch_backward(Pass& pass, Tensor d_residual, const std::string& site, const Norm& norm,
                         const NormSaved& saved, const Backward& backward) const;

  std::string name_;  // "layers.I"
  const parallel::Unit& unit_;
  Norm attention_norm_;
  Attention attention_;
  Norm mlp_norm_;
  std::optional<Mlp> mlp_;
  std::optional<Moe> moe_;
};

}  // namespace quintet::model
