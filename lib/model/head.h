// The end of the model: final norm, projection to the vocabulary, cross-entropy. The vocabulary is split over tp: no
// rank ever holds all logits of a token (Shoeybi et al. 2019, section 3).
#pragma once

#include "lib/config/config.h"
#include "lib/model/embedding.h"
#include "lib/model/norm.h"
#include "lib/model/pass.h"

namespace quintet::model {

struct HeadSaved {
  NormSaved norm;
  Tensor input;             // [T', H]: normed
  Tensor logits;            // [T, V / tp]; backward turns them into their gradient in place
  Tensor maximum, sum_exp;  // [T], of the whole vocabulary
  ExactSum loss;            // of the tokens that count; on the first tensor rank only, so that each counts once
};

class Head {
 public:
  // `tied` is the embedding where this rank holds it: the head borrows its table. Without it a tied head brings a copy
  // of its own, and an untied one output.weight.
  Head(parallel::ParameterStore& store, const config::Config& config, const Embedding* tied);

  void forward(Pass& pass, Stream& stream, HeadSaved& saved) const;
  // Writes the gradient of the stream, [T', H].
  void backward(Pass& pass, const HeadSaved& saved, Tensor d_residual) const;

 private:
  // Before and after a use of its own unit, and of the one that it borrows from.
  void before(Pass& pass, parallel::Use use) const;
  void after(Pass& pass, parallel::Use use) const;

  const parallel::Unit& unit_;
  const parallel::Unit* lender_;  // the embedding's, where the table is borrowed
  Norm norm_;
  const parallel::Parameter* weight_;  // [V, H]
};

}  // namespace quintet::model
