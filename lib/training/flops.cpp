#include "lib/training/flops.h"

namespace quintet::training {

double flops_per_token(const config::Model& model, std::span<const pipeline::ModelParameter> parameters) {
  double elements = 0;
  for (const pipeline::ModelParameter& parameter : parameters) {
    const std::string& name = parameter.spec.name;
    const bool is_lookup = name == "position_embedding.weight" || (name == "embedding.weight" && !model.tie_embeddings);
    if (parameter.spec.shape.rank() != 2 || is_lookup) continue;
    const double share = parameter.spec.is_expert()
                             ? static_cast<double>(model.moe->top_k) / static_cast<double>(model.moe->experts)
                             : 1;
    elements += share * static_cast<double>(parameter.spec.shape.elements());
  }
  const double attention = static_cast<double>(model.layers) * static_cast<double>(model.heads) *
                           static_cast<double>(model.head_dim) * static_cast<double>(model.seq_length);
  return 6.0 * (elements + attention);
}

int64_t parameter_elements(std::span<const pipeline::ModelParameter> parameters) {
  int64_t elements = 0;
  for (const pipeline::ModelParameter& parameter : parameters) elements += parameter.spec.shape.elements();
  return elements;
}

}  // namespace quintet::training
