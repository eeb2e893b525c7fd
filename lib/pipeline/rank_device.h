// Where a rank computes.
#pragma once

#include <cstdint>
#include <memory>

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

// Bytes that all ranks of this node together can take where the fullest of their devices has as much as this one;
// `host_bytes` where memory is the host's.
int64_t available_bytes(const device::Device& device, const comm::Placement& placement, int64_t host_bytes);

}  // namespace quintet::pipeline
