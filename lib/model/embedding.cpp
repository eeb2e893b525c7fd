#include "lib/model/embedding.h"

#include <algorithm>

#include "lib/base/integers.h"
#include "lib/model/initialisation.h"

namespace quintet::model {
namespace {
constexpr const char* kSite = "embedding";
}

parallel::ParameterSpec vocabulary_matrix(const std::string& name, const config::Model& config, const Mesh& mesh) {
  const int64_t padded = round_up(config.vocab_size, mesh.size(Axis::tp));
  return {.name = name,
          .shape = {config.vocab_size, config.hidden_size},
          .along = parallel::placements(parallel::Placement::split(/*dimension=*/0, padded)),
          .init = matrix_init(config)};
}

parallel::ParameterSpec embedding_table(const config::Config& config, const Mesh& mesh) {
  parallel::ParameterSpec spec = vocabulary_matrix("embedding.weight", config.model, mesh);
  if (config.model.tie_embeddings && config.pipeline_ends_apart())
    spec.along[Axis::pp] = parallel::Placement::end_parts();
  return spec;
}

VocabularyShard shard_of(const parallel::Parameter& matrix, int64_t tensor_rank) {
  const int64_t rows = matrix.shape()[0], start = tensor_rank * rows;
  return {.start = start, .rows = rows, .valid = std::clamp<int64_t>(matrix.spec().shape[0] - start, 0, rows)};
}

Embedding::Embedding(parallel::ParameterStore& store, const config::Config& config)
    : unit_(store.begin_unit("embedding")) {
  table_ = &store.add(embedding_table(config, store.mesh()));
  const config::Model& model = config.model;
  if (model.position == config::Position::learned)
    positions_ = &store.add({.name = "position_embedding.weight",
                             .shape = {model.seq_length, model.hidden_size},
                             .init = matrix_init(model)});
  store.end_unit();
}

Tensor Embedding::forward(Pass& pass) const {
  const Tensor output = pass.keep({pass.local_tokens(), table_->shape()[1]});
  const device::ArenaScope scope(pass.scratch);
  const Tensor part = pass.tensor.part_of(pass.scratch, output);
  pass.units.before(unit_, parallel::Use::forward);
  // Exactly one rank has the token's row; positions stand in the first rank's part.
  const bool adds_positions = positions_ != nullptr && pass.tensor.rank() == 0;
  pass.device.embedding_forward({.tokens = pass.batch.tokens,
                                 .table = table_->weight(),
                                 .vocabulary_start = shard_of(*table_, pass.tensor.rank()).start,
                                 .position_table = adds_positions ? positions_->weight() : Tensor{},
                                 .positions = pass.batch.positions,
                                 .output = part});
  pass.units.after(unit_, parallel::Use::forward);
  pass.tensor.reduce(part, output, "embedding output").wait();
  if (pass.drops()) pass.device.add_dropout({}, output, pass.dropout_at(kSite), output);
  pass.observe("embedding output", output);
  return output;
}

Tensor Embedding::backward_input(Pass& pass, Tensor d_output) const {
  const Tensor d_sum = pass.splits_backward ? pass.keep(d_output.shape()) : d_output;
  if (pass.drops()) {
    pass.device.add_dropout({}, d_output, pass.dropout_at(kSite), d_sum);
  } else if (pass.splits_backward) {
    pass.device.copy(d_output, d_sum);
  }
  return d_sum;
}

void Embedding::backward_weight(Pass& pass, Tensor d_output) const {
  const device::ArenaScope scope(pass.scratch);
  pass.units.before(unit_, parallel::Use::backward_weight);
  pass.device.embedding_backward(
      {.tokens = pass.batch.tokens,
       .vocabulary_start = shard_of(*table_, pass.tensor.rank()).start,
       .positions = pass.batch.positions,
       .d_output = pass.tensor.gather(pass.scratch, d_output, "embedding output gradient"),
       .table_gradient = table_->gradient(),
       .position_table_gradient = positions_ != nullptr ? positions_->gradient() : Tensor{}});
  pass.units.after(unit_, parallel::Use::backward_weight);
}

}  // namespace quintet::model
