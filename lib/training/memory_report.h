// Memory by owner, as the ranks of a run see it together.
#pragma once

#include <cstdint>
#include <string>

#include "lib/comm/communicator.h"
#include "lib/device/device.h"
#include "lib/device/memory.h"
#include "lib/training/log.h"

namespace quintet::training {

// Peaks since the run began: bytes held in all, and in use by each owner, not necessarily at the same time. A device's
// own workspace is counted.
struct MemoryPeaks {
  int64_t held = 0;
  device::BytesByOwner by_owner;
  bool operator==(const MemoryPeaks&) const = default;
};
MemoryPeaks memory_peaks(const device::MemoryLedger& ledger, const device::Device& device);

// The rank that holds the most, the lowest of several, and its peaks. Every rank calls it with its own.
struct FullestRank {
  int64_t rank = 0;
  MemoryPeaks peaks;
};
FullestRank fullest_rank(comm::Communicator& communicator, const MemoryPeaks& own);

// A line: the peaks of the fullest rank. Every rank calls it.
void show_memory(Log& log, comm::Communicator& communicator, const MemoryPeaks& own, const std::string& when);
// A line an owner: its peak on the rank where that is largest, and on the fullest rank. Every rank calls it.
void show_memory_table(Log& log, comm::Communicator& communicator, const MemoryPeaks& own);

}  // namespace quintet::training
