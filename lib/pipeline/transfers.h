// Lists of computations become lists of actions: transfers are added where neighbouring stages lie on different ranks.
#pragma once

#include <cstdint>
#include <span>

#include "lib/pipeline/action.h"

namespace quintet::pipeline {

// Each receive is posted one computation ahead of its own, so that the message travels while the rank computes; each
// send follows the computation whose output it takes.
ActionLists with_transfers(const ActionLists& computations, const StagePlacement& placement);

// Messages between stages have memory of their own ([T', H] each), which a rank reuses. An action may take one before
// it runs, for its output or for what it receives; afterwards it may have no more need of one, or have put one on its
// way, which is free again once its receiver has posted the receive.
struct MessageUse {
  bool takes = false;
  bool gives_back = false;
  bool sends = false;
};
MessageUse message_use(const Action& action, const StagePlacement& placement);

// The most messages that a rank holds at once to run its list, those on their way not counted.
int64_t most_messages_held(std::span<const Action> list, const StagePlacement& placement);

}  // namespace quintet::pipeline
