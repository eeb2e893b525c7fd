// Token embedding, split over tp by vocabulary, plus learned positions, plus dropout.
#pragma once

#include "lib/config/config.h"
#include "lib/model/pass.h"
#include "lib/parallel/parameter_store.h"

namespace quintet::model {

class Embedding {
 public:
  Embedding(parallel::ParameterStore& store, const config::Model& config);

  // [T, H], kept.
  Tensor forward(Pass& pass) const;
  // d_output [T, H]; used up.
  void backward(Pass& pass, Tensor d_output) const;

  // [V, H]; the head's weight too where embeddings are tied.
  const parallel::Parameter& table() const { return *table_; }

 private:
  const parallel::Parameter* table_;
  const parallel::Parameter* positions_ = nullptr;  // [S, H]
};

}  // namespace quintet::model
