// Whether a config's first step fits into memory, before any is taken. Nothing is estimated: the step itself runs dry,
// on a device that has sizes only, and the ledger says what it took. Experts are taken to be as full as a rank has room
// for (parallel::ExpertDispatch).
#pragma once

#include <cstdint>
#include <string>

#include "lib/comm/communicator.h"
#include "lib/config/config.h"
#include "lib/device/memory.h"
#include "lib/pipeline/executor.h"
#include "lib/pipeline/rank_device.h"

namespace quintet::pipeline {

// What a rank has in use at most during the first step: in all, and by owner (not necessarily at one time).
struct MemoryBound {
  int64_t bytes = 0;
  device::BytesByOwner by_owner;
  ArenaSizes arenas;
};
MemoryBound memory_bound(const config::Config& config, const comm::Placement& placement);

// What can be done about too little memory for `owner`: "a smaller train.micro_batch_size or a larger mesh.tp".
std::string memory_advice(const config::Config& config, device::Owner owner);

// Throws Error(config), naming the owner that does not fit, where the ranks that share a memory with this one need more
// than is available. Every rank calls it.
void require_memory(const config::Config& config, comm::Communicator& communicator, const MemoryBound& own,
                    const AvailableMemory& available);

}  // namespace quintet::pipeline
