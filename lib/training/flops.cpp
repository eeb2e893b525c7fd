#include "lib/training/flops.h"

namespace quintet::training {

double flops_per_token(const config::Model& model, const parallel::ParameterStore& parameters) {
  double elements = 0;
  for (const parallel::Parameter& parameter : parameters.parameters()) {
    const bool is_lookup = parameter.name() == "position_embedding.weight" ||
                           (parameter.name() == "embedding.weight" && !model.tie_embeddings);
    if (parameter.spec().shape.rank() == 2 && !is_lookup)
      elements += static_cast<double>(parameter.spec().shape.elements());
  }
  const double attention = static_cast<double>(model.layers) * static_cast<double>(model.heads) *
                           static_cast<double>(model.head_dim) * static_cast<double>(model.seq_length);
  return 6.0 * (elements + attention);
}

}  // namespace quintet::training
