// Whole schedules, all stages at once, for tests.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/pipeline/schedule.h"
#include "lib/pipeline/schedule_check.h"

namespace quintet::pipeline {

using Lists = std::vector<std::vector<Action>>;

struct Schedule {
  int64_t microbatches = 0;
  Lists lists;
  std::vector<int64_t> most_in_flight;

  std::vector<Action>& operator[](size_t stage) { return lists[stage]; }
  std::string problem() const { return check_schedule(lists, microbatches, most_in_flight); }
};

constexpr std::array kSchedules = {config::PipelineSchedule::gpipe, config::PipelineSchedule::one_f_one_b};

inline Schedule training(config::PipelineSchedule schedule, int64_t stages, int64_t microbatches) {
  Schedule whole{.microbatches = microbatches, .lists = {}, .most_in_flight = {}};
  for (int64_t stage = 0; stage < stages; ++stage) {
    whole.lists.push_back(actions(schedule, stages, stage, microbatches));
    whole.most_in_flight.push_back(most_in_flight(schedule, stages, stage, microbatches));
  }
  return whole;
}

inline Schedule evaluation(int64_t stages, int64_t microbatches) {
  Schedule whole{.microbatches = microbatches,
                 .lists = {},
                 .most_in_flight = std::vector<int64_t>(static_cast<size_t>(stages), 1)};
  for (int64_t stage = 0; stage < stages; ++stage)
    whole.lists.push_back(with_transfers(forward_only(microbatches), stages, stage));
  return whole;
}

}  // namespace quintet::pipeline
