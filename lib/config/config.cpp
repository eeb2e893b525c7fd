#include "lib/config/config.h"

#include <cmath>

namespace quintet::config {

PerAxis<int64_t> Mesh::sizes() const { return {{dp, tp, pp, ep, cp}}; }

bool Optimizer::clips() const { return clip_grad_norm > 0 && std::isfinite(clip_grad_norm); }

}  // namespace quintet::config
