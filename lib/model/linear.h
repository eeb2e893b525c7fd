// A linear layer: weight [out, in] and bias, and its two backward products.
#pragma once

#include <string>

#include "lib/model/pass.h"
#include "lib/parallel/parameter_store.h"

namespace quintet::model {

// How a layer is cut over tp: by output features (column) or input features (row). Shoeybi et al. 2019, section 3.
enum class Split { column, row };

struct LinearOptions {
  Split split = Split::column;
  bool bias = false;
  parallel::Init init;
  int64_t pieces = 0;  // the output features are cut into so many only, each held by several ranks (Placement::pieces)
  parallel::Placement along_ep = parallel::Placement::parts();
};

class Linear {
 public:
  Linear() = default;
  // Registers `name`.weight [out, in] and, if asked, `name`.bias [out].
  Linear(parallel::ParameterStore& store, const std::string& name, int64_t out, int64_t in,
         const LinearOptions& options);

  // Output features of this rank.
  int64_t outputs() const { return weight_->shape()[0]; }

  // x: [T, in]; output: [T, out]; pre_activation: [T, out], where there is an activation. in and out are this rank's.
  // Split by rows, the output is this rank's part of a sum over tp; the bias stands in the first rank's part.
  void forward(Pass& pass, Tensor x, Tensor output, device::Activation activation = device::Activation::none,
               Tensor pre_activation = {}) const;
  // d_x (+)= d_output weight, times the derivative of the activation that made x.
  void backward_input(Pass& pass, Tensor d_output, Tensor d_x, bool accumulate = false,
                      device::Activation activation = device::Activation::none, Tensor pre_activation = {}) const;
  // Adds to the gradients of weight and bias. d_output is whole where the layer is split by rows: every rank finds the
  // bias's gradient by itself.
  void backward_weight(Pass& pass, Tensor x, Tensor d_output) const;

 private:
  Split split_ = Split::column;
  const parallel::Parameter* weight_ = nullptr;
  const parallel::Parameter* bias_ = nullptr;
};

}  // namespace quintet::model
