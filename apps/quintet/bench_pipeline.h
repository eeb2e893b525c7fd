// What pipeline schedules promise, and how near a run comes to it.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/comm/communicator.h"
#include "lib/config/config.h"
#include "lib/pipeline/executor.h"

namespace quintet {

// Prints what the schedules' lists say of pipelines of so many ranks; `chunks`: stages a rank under interleaved.
int bench_pipeline(const std::vector<int64_t>& ranks_shown, int64_t chunks);

// Prints how near `seconds` for a step's passes come to what the schedule's lists allow where computations take as long
// as those of each rank took. Every rank calls it with its own times of a step's computations.
void show_pipeline(comm::Communicator& communicator, const config::Config& config, int64_t microbatches,
                   const pipeline::Executor::ComputedSeconds& own_seconds, double seconds);

}  // namespace quintet
