// A device that has sizes but neither memory nor arithmetic: a step on it takes its buffers and does nothing else.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>

#include "lib/device/device.h"

namespace quintet::device {

// Addresses that it gives out must not be read or written. What the host reads from it is zero, but for the choices of
// routers, which take all experts in turn. It has `bytes` to give.
std::unique_ptr<Device> make_null_device(int64_t bytes = std::numeric_limits<int64_t>::max());

}  // namespace quintet::device
