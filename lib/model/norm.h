// Layer norm (Ba et al. 2016) or RMS norm (Zhang and Sennrich 2019) over H, with the pending branch added first.
#pragma once

#include <string>

#include "lib/config/config.h"
#include "lib/model/pass.h"
#include "lib/parallel/parameter_store.h"

namespace quintet::model {

struct NormSaved {
  Tensor input;                    // [T', H]: the residual stream as it was normed
  Tensor mean, inverse_deviation;  // [T']
};

class Norm {
 public:
  // Registers `name`.weight [H] and, for a layer norm with biases, `name`.bias [H].
  Norm(parallel::ParameterStore& store, std::string name, const config::Config& config);

  // Moves the stream's branch into its residual and returns the norm of that, [T', H]; all of it in `kept`.
  Tensor forward(Pass& pass, Stream& stream, NormSaved& saved, device::Arena& kept) const;
  // d_residual: in, the stream's gradient by other paths; out, the norm's added.
  void backward_input(Pass& pass, Tensor d_output, Tensor d_residual, const NormSaved& saved) const;
  void backward_weight(Pass& pass, Tensor d_output, const NormSaved& saved) const;

 private:
  std::string name_;
  device::NormKind kind_;
  double epsilon_;
  const parallel::Parameter* weight_;
  const parallel::Parameter* bias_ = nullptr;
};

}  // namespace quintet::model
