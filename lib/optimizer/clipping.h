// Clipping by the global norm (Pascanu et al. 2013).
#pragma once

#include <algorithm>

#include "lib/config/config.h"

namespace quintet::optimizer {

// What gradients of norm `norm` are multiplied by.
inline double clip_scale(const config::Optimizer& config, double norm) {
  return config.clips() ? std::min(1.0, config.clip_grad_norm / (norm + 1e-6)) : 1.0;
}

}  // namespace quintet::optimizer
