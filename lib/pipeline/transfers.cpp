#include "lib/pipeline/transfers.h"

#include <algorithm>
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

MessageUse message_use(const Action& action, const StagePlacement& placement) {
  const auto [kind, stage, microbatch] = action;
  const bool last = stage == placement.last_stage();
  switch (kind) {
    case Kind::forward: return {.takes = !last && !placement.hands_over(stage)};
    // The last stage's backward begins the gradient that it shares with the head; a stage before takes over the one
    // that it is given, and the first has nobody to give it to.
    case Kind::backward:
    case Kind::backward_input: return {.takes = last, .gives_back = stage == 0};
    case Kind::backward_weight:
    case Kind::receive_activation: return {};  // arrives in the memory of its microbatch
    case Kind::receive_gradient: return {.takes = true};
    case Kind::send_activation:
    case Kind::send_gradient: return {.sends = true};
  }
  QUINTET_CHECK(false, "unknown kind of action");
}

int64_t most_messages_held(std::span<const Action> list, const StagePlacement& placement) {
  int64_t held = 0, most = 0;
  for (const Action& action : list) {
    const MessageUse use = message_use(action, placement);
    if (use.takes) most = std::max(most, ++held);
    if (use.gives_back || use.sends) --held;
  }
  return most;
}

}  // namespace quintet::pipeline
