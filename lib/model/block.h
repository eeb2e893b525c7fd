// A pre-norm transformer block: x + attention(norm(x)), then x + mlp(norm(x)).
#pragma once

#include <string>

#include "lib/model/attention.h"
#include "lib/model/mlp.h"
#include "lib/model/norm.h"

namespace quintet::model {

struct BlockSaved {
  NormSaved attention_norm, mlp_norm;
  AttentionSaved attention;
  MlpSaved mlp;
};

class Block {
 public:
  Block(parallel::ParameterStore& store, int64_t layer, const config::Config& config, const RopeTable& rope);

  // Leaves the MLP's output as the stream's branch.
  void forward(Pass& pass, Stream& stream, BlockSaved& saved) const;
  // d_residual [T', H]: the gradient of the block's output, turned in place into that of its input.
  void backward(Pass& pass, Tensor d_residual, const BlockSaved& saved) const;

 private:
  std::string name_;  // "layers.I"
  Norm attention_norm_;
  Attention attention_;
  Norm mlp_norm_;
  Mlp mlp_;
};

}  // namespace quintet::model
