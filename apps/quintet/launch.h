// Where the ranks of a command come from.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "lib/base/error.h"
#include "lib/comm/communicator.h"

namespace quintet {

// Runs `body` on every rank: as `ranks` threads, as this process of an MPI world, or alone where ranks is 0 and nothing
// launched us. Returns what body returned, or the code of the failure that ended the world.
int run_ranks(int64_t ranks, int* argc, char*** argv, const std::function<int(comm::Communicator&)>& body);

// For a command that failed before it had ranks: says `message` once, however many processes say the same, and returns
// the code.
int refuse(ExitCode code, const std::string& message, int* argc, char*** argv);

}  // namespace quintet
