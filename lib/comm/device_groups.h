// Groups for tensors on devices that reach each other without the host: a twin for each group of messages.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lib/comm/process_group.h"
#include "lib/device/queue.h"

namespace quintet::comm {

class Communicator;
class Transport;

// Where a group of messages stands: its reports' name, and the lane that no other group between its members uses.
struct GroupPlace {
  Communicator& communicator;
  Transport& transport;
  uint8_t lane = 0;
  int64_t generation = 0;  // of the communicator's device groups, alike on all ranks
  std::string name;
};

// One a rank. Destroyed while an exception unwinds, it gives up all that is under way.
class DeviceGroups {
 public:
  DeviceGroups() = default;
  virtual ~DeviceGroups() = default;
  DeviceGroups(const DeviceGroups&) = delete;
  DeviceGroups& operator=(const DeviceGroups&) = delete;

  // The group of the same members for tensors on the device, one for each lane; its bytes are not counted again. Made
  // on first use; members need not come to it at the same time, and nobody blocks.
  virtual ProcessGroup& twin_of(const ProcessGroup& group, const GroupPlace& place) = 0;
};

// "NCCL 2.28.9", or "" in a build without.
std::string nccl_version();
// Groups over NCCL for the calling thread's device, whose queue this is; ranks must not share devices. Null in a build
// without NCCL.
std::unique_ptr<DeviceGroups> make_nccl_groups(device::WorkQueue& queue);

}  // namespace quintet::comm
