// Where a rank computes.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>

#include "lib/comm/communicator.h"
#include "lib/config/config.h"
#include "lib/device/device.h"

namespace quintet::pipeline {

// Host threads of a rank: device.threads, or its share of the CPUs that its node's ranks may use.
int threads_of(const config::Config& config, const comm::Placement& placement);

// What device.kind asks for: the GPU of the rank's place among its node's ranks, modulo their number, or the CPU. auto
// takes a GPU where there is one that can run the config. Throws Error(config) where there is none for cuda.
std::unique_ptr<device::Device> make_rank_device(const config::Config& config, const comm::Placement& placement);

// How the ranks' devices talk to each other: over NCCL where each rank has a GPU of its own; null where the transport
// does it, or has nothing to do. All ranks call it. Throws Error(config) where the transport would, between GPUs that
// do not reach each other's memory.
std::unique_ptr<comm::DeviceGroups> make_rank_groups(comm::Communicator& communicator, device::Device& device);

// What can still be taken from the memory that a rank computes in, by all ranks that share it: a GPU of its node, or
// the host's.
struct AvailableMemory {
  std::optional<int64_t> gpu;  // its number on the node
  int64_t bytes = std::numeric_limits<int64_t>::max();
};
AvailableMemory available_memory(const device::Device& device, const comm::Placement& placement);

}  // namespace quintet::pipeline
