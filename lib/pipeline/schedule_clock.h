// How long a plan takes if nothing but its computations takes time.
#pragma once

#include <functional>

#include "lib/pipeline/schedule.h"

namespace quintet::pipeline {

// From the first computation to the end of the last where each takes `duration`; a message is there once it was sent.
// Needs a plan that the checker accepts.
double play(const Plan& plan, const std::function<double(const Action& computation)>& duration);

// Units of time in which a rank of a training plan is idle, where the forward of all its layers takes one, and so does
// each part of their backward: all ranks have the same work, so that all are as idle.
double idle_units(const Plan& plan);

// Microbatches that a rank keeps at most between their forward and the end of their backward, a stage's share of its
// layers counted as that share; of the fullest rank.
double most_microbatches_kept(const Plan& plan);

}  // namespace quintet::pipeline
