// Builds without NCCL.
#include "lib/comm/device_groups.h"

namespace quintet::comm {

std::string nccl_version() { return {}; }
std::unique_ptr<DeviceGroups> make_nccl_groups(device::WorkQueue&) { return nullptr; }

}  // namespace quintet::comm
