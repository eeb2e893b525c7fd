// A training run from its config to its last line.
#pragma once

#include "lib/comm/communicator.h"
#include "lib/config/config.h"

namespace quintet::training {

// Trains as this rank of the world; every rank calls it with the same config. Returns 0, or 128 + signal when the run
// was asked to stop. Throws Error with the exit code that users are promised.
int train(const config::Config& config, comm::Communicator& communicator);

}  // namespace quintet::training
