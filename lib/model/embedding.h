// Token embedding, split over tp by vocabulary (padded to a multiple of tp), plus learned positions, plus dropout.
#pragma once

#include "lib/config/config.h"
#include "lib/model/pass.h"
#include "lib/parallel/parameter_store.h"

namespace quintet::model {

// A [V, H] matrix whose rows are tokens: the embedding table and the head's projection.
parallel::ParameterSpec vocabulary_matrix(const std::string& name, const config::Model& config, const Mesh& mesh);
// The embedding table; where embeddings are tied and the pipeline's ends lie on different ranks, both hold it.
parallel::ParameterSpec embedding_table(const config::Config& config, const Mesh& mesh);

// The entries of the vocabulary that a tensor rank's rows of `matrix` stand for; the rest of its rows are padding.
struct VocabularyShard {
  int64_t start = 0, rows = 0, valid = 0;
};
VocabularyShard shard_of(const parallel::Parameter& matrix, int64_t tensor_rank);

class Embedding {
 public:
  Embedding(parallel::ParameterStore& store, const config::Config& config);

  // [T', H], kept.
  Tensor forward(Pass& pass) const;
  // d_output [T', H]; used up. Returns what the weight part needs.
  Tensor backward_input(Pass& pass, Tensor d_output) const;
  void backward_weight(Pass& pass, Tensor d_output) const;

  // [V, H]; the head's weight too where embeddings are tied.
  const parallel::Parameter& table() const { return *table_; }
  const parallel::Unit& unit() const { return unit_; }

 private:
  const parallel::Unit& unit_;
  const parallel::Parameter* table_;
  const parallel::Parameter* positions_ = nullptr;  // [S, H]
};

}  // namespace quintet::model
