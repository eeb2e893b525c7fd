// The feed-forward layer: y = down(activation(up x)), or down(silu(gate x) * up x) for swiglu (Shazeer 2020). Split by
// columns, then rows, over tp.
#pragma once

#include <string>

#include "lib/config/config.h"
#include "lib/model/linear.h"

namespace quintet::model {

struct MlpSaved {
  Tensor input;     // [T', H]
  Tensor gate, up;  // [T, F / tp]: before the activation; gate with swiglu only
  Tensor hidden;    // [T, F / tp]: after it
};

class Mlp {
 public:
  // `name` is "layers.I.mlp".
  Mlp(parallel::ParameterStore& store, std::string name, const config::Model& config);

  // x: [T', H], kept by the caller; output: [T', H].
  void forward(Pass& pass, Tensor x, Tensor output, MlpSaved& saved) const;
  void backward(Pass& pass, Tensor d_output, Tensor d_x, const MlpSaved& saved) const;

 private:
  std::string name_;
  bool gated_;
  device::Activation activation_ = device::Activation::none;
  Linear gate_, up_, down_;
};

}  // namespace quintet::model
