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

constexpr std::array kSchedules = {config::PipelineSchedule::gpipe, config::PipelineSchedule::one_f_one_b,
                                   config::PipelineSchedule::interleaved, config::PipelineSchedule::zero_bubble,
                                   config::PipelineSchedule::zero_bubble_v};

// Whether a rank may have so many stages under the schedule.
inline bool allows(config::PipelineSchedule schedule, int64_t chunks) {
  switch (schedule) {
    case config::PipelineSchedule::gpipe:
    case config::PipelineSchedule::interleaved: return true;
    case config::PipelineSchedule::one_f_one_b:
    case config::PipelineSchedule::zero_bubble: return chunks == 1;
    case config::PipelineSchedule::zero_bubble_v: return chunks == 2;
  }
  return false;
}

// Of as few stages a rank as the schedule allows.
inline Schedule training(config::PipelineSchedule schedule, int64_t ranks, int64_t microbatches) {
  return {plan_training(schedule, ranks, allows(schedule, 1) ? 1 : 2, microbatches)};
}
inline Schedule training(config::PipelineSchedule schedule, int64_t ranks, int64_t microbatches, int64_t chunks) {
  return {plan_training(schedule, ranks, chunks, microbatches)};
}

inline Schedule evaluation(int64_t ranks, int64_t microbatches, int64_t chunks = 1,
                           StagePlacement::Shape shape = StagePlacement::Shape::loop) {
  return {plan_evaluation({.shape = shape, .ranks = ranks, .chunks = chunks}, microbatches)};
}

}  // namespace quintet::pipeline
