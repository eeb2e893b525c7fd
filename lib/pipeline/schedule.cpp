#include "lib/pipeline/schedule.h"

#include <algorithm>

#include "lib/base/error.h"

namespace quintet::pipeline {

std::vector<Action> gpipe(int64_t microbatches) {
  std::vector<Action> actions;
  for (int64_t i = 0; i < microbatches; ++i) actions.push_back(Action::forward(i));
  for (int64_t i = 0; i < microbatches; ++i) actions.push_back(Action::backward(i));
  return actions;
}

std::vector<Action> one_f_one_b(int64_t stages, int64_t stage, int64_t microbatches) {
  const int64_t warmup = std::min(stages - stage - 1, microbatches);
  std::vector<Action> actions;
  int64_t forward = 0;
  int64_t backward = 0;
  while (forward < warmup) actions.push_back(Action::forward(forward++));
  while (forward < microbatches) {
    actions.push_back(Action::forward(forward++));
    actions.push_back(Action::backward(backward++));
  }
  while (backward < microbatches) actions.push_back(Action::backward(backward++));
  return actions;
}

std::vector<Action> actions(config::PipelineSchedule schedule, int64_t stages, int64_t stage, int64_t microbatches) {
  switch (schedule) {
    case config::PipelineSchedule::gpipe: return gpipe(microbatches);
    case config::PipelineSchedule::one_f_one_b: return one_f_one_b(stages, stage, microbatches);
    case config::PipelineSchedule::interleaved:
    case config::PipelineSchedule::zero_bubble: break;
  }
  QUINTET_CHECK(false, "no such schedule is built");
}

}  // namespace quintet::pipeline
