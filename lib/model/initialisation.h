// How weight matrices start, and how parameters that work row by row lie along tp.
#pragma once

#include <cmath>

#include "lib/config/config.h"
#include "lib/parallel/parameter.h"

namespace quintet::model {

inline parallel::Init matrix_init(const config::Model& config) { return parallel::Init::normal(config.init_std); }

// Matrices that write into the residual stream: 2 * layers of them add up in it (Radford et al. 2019, section 2.3).
inline parallel::Init residual_init(const config::Model& config) {
  return parallel::Init::normal(config.init_std / std::sqrt(2.0 * static_cast<double>(config.layers)));
}

// Of norms and routers: where the sequence is split, each tensor rank sees its own rows' part of the gradient.
inline parallel::Placement replicated_over_rows(const config::Config& config) {
  return config.parallel.sequence_parallel ? parallel::Placement::parts() : parallel::Placement::same();
}

}  // namespace quintet::model
