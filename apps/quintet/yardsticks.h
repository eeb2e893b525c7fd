// What a GPU can do at best, measured on it.
#pragma once

#include <cstdint>
#include <functional>

#include "lib/base/dtype.h"
#include "lib/device/device.h"
#include "lib/device/memory.h"

namespace quintet {

// Numbers between -0.5 and 0.5 on the device. Not zeros: a GPU multiplies those faster than others.
Tensor random_operand(device::Device& device, device::Arena& arena, DType dtype, Shape shape);

// Seconds of a call that queues work on a CUDA device, by the device's clock: the median of five series, each long
// enough for the clock's resolution not to matter. 0 on an emulated GPU, which knows no time.
double gpu_seconds(device::Device& device, const std::function<void()>& call);

// FLOPs a second of the fastest of three products of n x n matrices: a layer's forward, its input's and its weight's
// gradient. 0 where time is not known.
double best_product(device::Device& device, DType dtype, int64_t n);

// The same over n up to 8192, as long as a product takes less than 2 ms: the peak that shares refer to.
double best_product(device::Device& device, DType dtype);

}  // namespace quintet
