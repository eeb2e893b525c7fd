// Lists of computations become lists of actions: transfers are added where neighbouring stages lie on different ranks.
#pragma once

#include "lib/pipeline/action.h"

namespace quintet::pipeline {

// Each receive is posted one computation ahead of its own, so that the message travels while the rank computes; each
// send follows the computation whose output it takes.
ActionLists with_transfers(const ActionLists& computations, const StagePlacement& placement);

}  // namespace quintet::pipeline
