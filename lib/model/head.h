// The end of the model: final norm, projection to the vocabulary, cross-entropy.
#pragma once

#include "lib/config/config.h"
#include "lib/model/norm.h"
#include "lib/model/pass.h"

namespace quintet::model {

struct HeadSaved {
  NormSaved norm;
  Tensor input;             // [T, H]: normed
  Tensor logits;            // [T, V]; backward turns them into their gradient in place
  Tensor maximum, sum_exp;  // [T]
};

class Head {
 public:
  // `tied` is the embedding table, or null for a matrix of its own, output.weight.
  Head(parallel::ParameterStore& store, const config::Model& config, const parallel::Parameter* tied);

  // Adds the losses of the tokens that count to `loss`.
  void forward(Pass& pass, Stream& stream, HeadSaved& saved, ExactSum& loss) const;
  // Returns the gradient of the stream, [T, H], in scratch.
  Tensor backward(Pass& pass, const HeadSaved& saved) const;

 private:
  Norm norm_;
  const parallel::Parameter* weight_;  // [V, H]
};

}  // namespace quintet::model
