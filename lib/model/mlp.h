// The dense feed-forward layer: a FeedForward on rows that tensor ranks gather, its parts summed.
#pragma once

#include <string>

#include "lib/model/backward_parts.h"
#include "lib/model/feed_forward.h"

namespace quintet::model {

struct MlpSaved {
  Tensor input;  // [T', H]
  FeedForwardSaved inner;
};

// What the weight part needs of the input part.
struct MlpGradients {
  GatheredRows d_output, input;
  FeedForwardGradients inner;
  comm::Handle reduced;  // d_x
};

class Mlp {
 public:
  // `name` is "layers.I.mlp"; `inner` the inner width.
  Mlp(parallel::ParameterStore& store, std::string name, const config::Model& config, int64_t inner);

  // x: [T', H], kept by the caller; output: [T', H], not written when recomputing.
  void forward(Pass& pass, Tensor x, Tensor output, MlpSaved& saved) const;
  // d_output: [T', H], lives until the weight part; d_x: [T', H], there once `reduced` has been waited for.
  MlpGradients backward_input(Pass& pass, Tensor d_output, Tensor d_x, const MlpSaved& saved) const;
  void backward_weight(Pass& pass, const MlpSaved& saved, MlpGradients& gradients) const;

  const std::string& name() const { return name_; }

 private:
  std::string name_;
  FeedForward layers_;
};

}  // namespace quintet::model
