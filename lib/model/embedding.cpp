#include "lib/model/embedding.h"

#include "lib/model/initialisation.h"

namespace quintet::model {
namespace {
constexpr const char* kSite = "embedding";
}

Embedding::Embedding(parallel::ParameterStore& store, const config::Model& config) {
  table_ = &store.add({.name = "embedding.weight",
                       .shape = {config.vocab_size, config.hidden_size},
                       .shards = {{.axis = Axis::tp, .dimension = 0}},
                       .init = matrix_init(config)});
  if (config.position == config::Position::learned)
    positions_ = &store.add({.name = "position_embedding.weight",
                             .shape = {config.seq_length, config.hidden_size},
                             .shards = {},
                             .init = matrix_init(config)});
}

Tensor Embedding::forward(Pass& pass) const {
  const Tensor output = pass.keep({pass.tokens(), table_->shape()[1]});
  pass.device.embedding_forward({.tokens = pass.batch.tokens,
                                 .table = table_->weight(),
                                 .position_table = positions_ != nullptr ? positions_->weight() : Tensor{},
                                 .positions = pass.batch.positions,
                                 .output = output});
  if (pass.dropout > 0) pass.device.add_dropout({}, output, pass.dropout_at(kSite), output);
  pass.observe("embedding output", output);
  return output;
}

void Embedding::backward(Pass& pass, Tensor d_output) const {
  if (pass.dropout > 0) pass.device.add_dropout({}, d_output, pass.dropout_at(kSite), d_output);
  pass.device.embedding_backward(
      {.tokens = pass.batch.tokens,
       .positions = pass.batch.positions,
       .d_output = d_output,
       .table_gradient = table_->gradient(),
       .position_table_gradient = positions_ != nullptr ? positions_->gradient() : Tensor{}});
}

}  // namespace quintet::model
