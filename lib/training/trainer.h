// A training run from its config to its last line.
#pragma once

#include "lib/comm/communicator.h"
#include "lib/config/config.h"

namespace quintet::training {

// CPU threads of this rank: device.threads, or this rank's share of the CPUs that its node lets us use.
int threads_of(const config::Config& config, const comm::Placement& placement);

// Trains as this rank of the world; every rank calls it with the same config. Returns 0, or 128 + signal when the run
// was asked to stop. Throws Error with the exit code that users are promised.
int train(const config::Config& config, comm::Communicator& communicator);

}  // namespace quintet::training
