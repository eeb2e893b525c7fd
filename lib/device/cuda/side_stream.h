// A stream for the copies and sums of communication, beside the one that computes.
#pragma once

#include <memory>

#include "lib/device/queue.h"

namespace quintet::device::cuda {

// On the calling thread's GPU.
std::unique_ptr<SideQueue> make_side_stream();

}  // namespace quintet::device::cuda
