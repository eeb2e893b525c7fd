#include "lib/pipeline/schedule.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include <fmt/core.h>

#include "lib/base/error.h"

namespace quintet::pipeline {
namespace {

using Kind = Action::Kind;

std::string_view name_of(Kind kind) {
  switch (kind) {
    case Kind::forward: return "forward";
    case Kind::backward: return "backward";
    case Kind::receive_activation: return "activation receive";
    case Kind::send_activation: return "activation send";
    case Kind::receive_gradient: return "gradient receive";
    case Kind::send_gradient: return "gradient send";
  }
  QUINTET_CHECK(false, "unknown kind of action");
}

std::optional<Action> receive_for(const Action& computation, int64_t stages, int64_t stage) {
  if (computation.kind == Kind::forward && stage > 0) return Action::receive_activation(computation.microbatch);
  if (computation.kind == Kind::backward && stage < stages - 1) return Action::receive_gradient(computation.microbatch);
  return std::nullopt;
}

std::optional<Action> send_after(const Action& computation, int64_t stages, int64_t stage) {
  if (computation.kind == Kind::forward && stage < stages - 1) return Action::send_activation(computation.microbatch);
  if (computation.kind == Kind::backward && stage > 0) return Action::send_gradient(computation.microbatch);
  return std::nullopt;
}

std::vector<Action> computations(config::PipelineSchedule schedule, int64_t stages, int64_t stage,
                                 int64_t microbatches) {
  switch (schedule) {
    case config::PipelineSchedule::gpipe: return gpipe(microbatches);
    case config::PipelineSchedule::one_f_one_b: return one_f_one_b(stages, stage, microbatches);
    case config::PipelineSchedule::interleaved:
    case config::PipelineSchedule::zero_bubble: break;
  }
  QUINTET_CHECK(false, "no such schedule is built");
}

}  // namespace

std::string to_string(const Action& action) {
  return fmt::format("{} of microbatch {}", name_of(action.kind), action.microbatch);
}

std::vector<Action> gpipe(int64_t microbatches) {
  std::vector<Action> actions = forward_only(microbatches);
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

std::vector<Action> forward_only(int64_t microbatches) {
  std::vector<Action> actions;
  for (int64_t i = 0; i < microbatches; ++i) actions.push_back(Action::forward(i));
  return actions;
}

std::vector<Action> with_transfers(std::span<const Action> computations, int64_t stages, int64_t stage) {
  QUINTET_CHECK(0 <= stage && stage < stages, "stage {} of {}", stage, stages);
  std::vector<Action> actions;
  const auto add = [&](const std::optional<Action>& transfer) {
    if (transfer) actions.push_back(*transfer);
  };
  if (!computations.empty()) add(receive_for(computations.front(), stages, stage));
  for (size_t i = 0; i < computations.size(); ++i) {
    QUINTET_CHECK(computations[i].computes(), "{} is a transfer already", to_string(computations[i]));
    if (i + 1 < computations.size()) add(receive_for(computations[i + 1], stages, stage));
    actions.push_back(computations[i]);
    add(send_after(computations[i], stages, stage));
  }
  return actions;
}

std::vector<Action> actions(config::PipelineSchedule schedule, int64_t stages, int64_t stage, int64_t microbatches) {
  return with_transfers(computations(schedule, stages, stage, microbatches), stages, stage);
}

int64_t most_in_flight(config::PipelineSchedule schedule, int64_t stages, int64_t stage, int64_t microbatches) {
  switch (schedule) {
    case config::PipelineSchedule::gpipe: return microbatches;
    case config::PipelineSchedule::one_f_one_b: return std::min(stages - stage, microbatches);
    case config::PipelineSchedule::interleaved:
    case config::PipelineSchedule::zero_bubble: break;
  }
  QUINTET_CHECK(false, "no such schedule is built");
}

}  // namespace quintet::pipeline
