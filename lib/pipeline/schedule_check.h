// Whether a plan is a pipeline schedule that ends, with the sums in their order and within its memory.
#pragma once

#include <string>

#include "lib/pipeline/schedule.h"

namespace quintet::pipeline {

// Lists without any backward are an evaluation, which keeps nothing. Returns "" for a right plan, else a sentence that
// names rank, action and the broken rule, and below it the actions of all ranks around it, the faulty one in brackets:
// - each rank has the actions of its own stages;
// - each stage runs each microbatch forward once and backward once, as a whole or in its two parts;
// - what a computation needs on its rank stands before it: a backward its forward, a weight part its input part, a
//   stage the neighbour on the same rank that hands over to it;
// - each computation's receive stands before it and its send after it, once, and none where the neighbour lies on the
//   same rank or there is none;
// - all actions of a stage and kind are in ascending order of microbatches: gradients add up in the same order under
//   every schedule, and both ends of a channel carry the same messages in the same order;
// - no rank keeps more than its bound;
// - no ranks wait for each other, where computations wait for their messages and nothing else waits.
std::string check_plan(const Plan& plan);

// How many messages a rank may have on their way, beyond those that it holds, so that it can wait for its oldest before
// it takes another without ranks waiting in a circle: two, so that one travels while the next is made, or more where
// the plan needs more. A plan that is not right must not start: it ends in a CheckFailure with check_plan()'s report.
int64_t messages_under_way(const Plan& plan);

}  // namespace quintet::pipeline
