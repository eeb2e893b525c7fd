// Whole plans, for tests.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/pipeline/schedule.h"
#include "lib/pipeline/schedule_check.h"

namespace quintet::pipeline {

// A plan whose lists a test spoils.
struct Schedule : Plan {
  std::vector<Action>& operator[](size_t rank) { return lists[rank]; }
  // The checker's sentence, without the picture below it.
  std::string problem() const {
    const std::string report = check_plan(*this);
    return report.substr(0, report.find('\n'));
  }
};

constexpr std::array kSchedules = {config::PipelineSchedule::gpipe, config::PipelineSchedule::one_f_one_b};

inline Schedule training(config::PipelineSchedule schedule, int64_t ranks, int64_t microbatches, int64_t chunks = 1) {
  return {plan_training(schedule, ranks, chunks, microbatches)};
}

inline Schedule evaluation(int64_t ranks, int64_t microbatches, int64_t chunks = 1,
                           StagePlacement::Shape shape = StagePlacement::Shape::loop) {
  return {plan_evaluation({.shape = shape, .ranks = ranks, .chunks = chunks}, microbatches)};
}

}  // namespace quintet::pipeline
