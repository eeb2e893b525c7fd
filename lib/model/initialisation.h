// How weight matrices start.
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

}  // namespace quintet::model
