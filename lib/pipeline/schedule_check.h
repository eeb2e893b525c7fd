// Whether lists of actions are a pipeline schedule that ends, with the sums in their order and within its memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/pipeline/schedule.h"

namespace quintet::pipeline {

// lists[s] is what stage s does, transfers included; most_in_flight[s] bounds the microbatches that it keeps at any
// time between their forward and their backward. Lists without any backward are an evaluation, which keeps nothing.
// Returns
// "" for a right schedule, else a sentence that names stage, action and the broken rule:
// - each stage runs each microbatch forward once and, later, backward once, both in ascending order, so that gradients
//   add up in the same order under every schedule;
// - each computation's receive stands before it and its send after it, once, and none where there is no neighbour;
// - what a stage sends to another is received in the order sent, since messages between two ranks do not overtake;
// - no stage keeps more microbatches than its bound;
// - no stages wait for each other, where computations wait for their messages and nothing else waits.
std::string check_schedule(std::span<const std::vector<Action>> lists, int64_t microbatches,
                           std::span<const int64_t> most_in_flight);

}  // namespace quintet::pipeline
