#include "lib/pipeline/transfers.h"

#include <optional>

#include "lib/base/error.h"

namespace quintet::pipeline {
namespace {

using Kind = Action::Kind;

std::optional<Action> receive_for(const Action& computation, const StagePlacement& placement) {
  const auto [kind, stage, microbatch] = computation;
  if (kind == Kind::forward && stage > 0 && !placement.hands_over(stage - 1))
    return Action{Kind::receive_activation, stage, microbatch};
  if (computation.is_backward() && stage < placement.last_stage() && !placement.hands_over(stage))
    return Action{Kind::receive_gradient, stage, microbatch};
  return std::nullopt;
}

std::optional<Action> send_after(const Action& computation, const StagePlacement& placement) {
  const auto [kind, stage, microbatch] = computation;
  if (kind == Kind::forward && stage < placement.last_stage() && !placement.hands_over(stage))
    return Action{Kind::send_activation, stage, microbatch};
  if (computation.is_backward() && stage > 0 && !placement.hands_over(stage - 1))
    return Action{Kind::send_gradient, stage, microbatch};
  return std::nullopt;
}

}  // namespace

ActionLists with_transfers(const ActionLists& computations, const StagePlacement& placement) {
  ActionLists lists;
  for (const std::vector<Action>& computed : computations) {
    std::vector<Action>& actions = lists.emplace_back();
    const auto add = [&](const std::optional<Action>& transfer) {
      if (transfer) actions.push_back(*transfer);
    };
    if (!computed.empty()) add(receive_for(computed.front(), placement));
    for (size_t i = 0; i < computed.size(); ++i) {
      QUINTET_CHECK(computed[i].computes(), "{} is a transfer already", to_string(computed[i]));
      if (i + 1 < computed.size()) add(receive_for(computed[i + 1], placement));
      actions.push_back(computed[i]);
      add(send_after(computed[i], placement));
    }
  }
  return lists;
}

}  // namespace quintet::pipeline
