// The learning rate of each step, as a pure function.
#pragma once

#include <cstdint>

#include "lib/config/config.h"

namespace quintet::optimizer {

// At step k, counted from 1: linear warm-up over warmup_steps, then constant, cosine (Loshchilov and Hutter 2017),
// linear or wsd (Hu et al. 2024: constant for four fifths of decay_steps, then linear) down to min_learning_rate. A run
// no longer than warmup_steps sees the first of these only.
double learning_rate(const config::Optimizer& optimizer, const config::Schedule& schedule, int64_t step);

}  // namespace quintet::optimizer
