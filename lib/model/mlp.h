// The dense feed-forward layer: a FeedForward on rows that tensor ranks gather, its parts summed.
#pragma once

#include <string>

#include "lib/model/feed_forward.h"

namespace quintet::model {

struct MlpSaved {
  Tensor input;  // [T', H]
  FeedForwardSaved inner;
};

class Mlp {
 public:
  // `name` is "layers.I.mlp"; `inner` the inner width.
  Mlp(parallel::ParameterStore& store, std::string name, const config::Model& config, int64_t inner);

  // x: [T', H], kept by the caller; output: [T', H].
  void forward(Pass& pass, Tensor x, Tensor output, MlpSaved& saved) const;
  void backward(Pass& pass, Tensor d_output, Tensor d_x, const MlpSaved& saved) const;

 private:
  std::string name_;
  FeedForward layers_;
};

}  // namespace quintet::model
