// The end of the model: final norm, projection to the vocabulary, cross-entropy. The vocabulary is split over tp: no
// rank ever holds all logits of a token (Shoeybi et al. 2019, section 3). Nor does it hold logits of many tokens: they
// live while a chunk of tokens goes forward and backward.
#pragma once

#include "lib/config/config.h"
#include "lib/model/embedding.h"
#include "lib/model/norm.h"
#include "lib/model/pass.h"

namespace quintet::model {

struct HeadSaved {
  Tensor input;   // [T', H]: the residual stream
  ExactSum loss;  // of the tokens that count; on the first tensor rank only, so that each counts once
};

class Head {
 public:
  // `tied` is the embedding where this rank holds it: the head borrows its table. Without it a tied head brings a copy
  // of its own, and an untied one output.weight.
  Head(parallel::ParameterStore& store, const config::Config& config, const Embedding* tied);

  // The loss of saved.input, in an evaluation.
  void forward(Pass& pass, HeadSaved& saved) const;
  // In training: the loss, the gradients of parameters and that of the stream, [T', H], which is written.
  void forward_backward(Pass& pass, HeadSaved& saved, Tensor d_residual) const;

 private:
  // Tokens of a chunk, and the softmax of those done, [T].
  struct Chunk {
    int64_t first = 0, count = 0;
    bool is_last = false;
  };
  struct Softmax {
    Tensor maximum, sum_exp, target_logit;
  };

  // Before and after a use of its own unit, and of the one that it borrows from.
  void before(Pass& pass, parallel::Use use) const;
  void after(Pass& pass, parallel::Use use) const;
  // f(chunk, logits [count, V / tp]) for all chunks of tokens, the last one shorter.
  template <typename Function>
  void for_chunks(Pass& pass, const Function& f) const;
  // Logits of a chunk of x [T, H], and their softmax over the whole vocabulary.
  void project(Pass& pass, Tensor x, const Chunk& chunk, Tensor logits, const Softmax& softmax) const;
  void sum_losses(Pass& pass, const Softmax& softmax, HeadSaved& saved) const;

  const parallel::Unit& unit_;
  const parallel::Unit* lender_;  // the embedding's, where the table is borrowed
  Norm norm_;
  const parallel::Parameter* weight_;  // [V, H]
};

}  // namespace quintet::model
