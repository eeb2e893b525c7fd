// A world of which only one rank is there, for steps that run dry: every other rank is taken to do as this one does.
#pragma once

#include <memory>

#include "lib/comm/device_groups.h"
#include "lib/comm/transport.h"

namespace quintet::comm {

// What a peer is asked for on the host is what it was last sent where that is as long, else zeros; nobody waits.
std::unique_ptr<Transport> make_null_transport();
// Groups for tensors on a null device, which do not travel.
std::unique_ptr<DeviceGroups> make_null_groups();

}  // namespace quintet::comm
