// A pipeline schedule is data: a pure function from stages and microbatches to a list of computations for each rank.
// A new one is a function and a row of the table in schedule.cpp.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/config/config.h"
#include "lib/pipeline/action.h"

namespace quintet::pipeline {

// What a pipeline is to do with so many microbatches, transfers included.
struct Plan {
  StagePlacement placement;
  int64_t microbatches = 0;
  ActionLists lists;
  // How many (stage, microbatch) each rank keeps at most, from the forward to the end of the backward: the schedule's
  // promise. Memory is planned by it.
  std::vector<int64_t> most_kept;
};

// Of a step.
Plan plan_training(config::PipelineSchedule name, int64_t ranks, int64_t chunks, int64_t microbatches);
Plan plan_training(const config::Config& config, int64_t microbatches);
// Of an evaluation, which keeps nothing after a forward.
Plan plan_evaluation(const StagePlacement& placement, int64_t microbatches);

// Which rank holds which stages under the config's schedule.
StagePlacement placement_of(const config::Config& config);

}  // namespace quintet::pipeline
