// The CUDA device. The same names exist in every build: where CUDA is not built in, there are no GPUs and a reason.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/device/device.h"

namespace quintet::device {

struct CudaSupport {
  std::string built_in;           // "CUDA 13.0 (sm_80, sm_90a, sm_100), cuBLASLt 13.0.2"; empty: nothing
  std::vector<std::string> gpus;  // those that can be used, as "NVIDIA H200 (sm_90, 143 GB)", by ordinal
  std::string problem;            // why there are none
};
CudaSupport cuda_support();
// GPUs that can be used.
int cuda_devices();

// The GPU `ordinal` for the calling thread, which is the only one that may use it; `host_threads` is for what remains
// to the host. An Error(config) where there is no such GPU.
std::unique_ptr<Device> make_cuda_device(int ordinal, int host_threads);

// Lets such a device use the memory of the GPUs before `count`, whose ranks are threads of this process too and
// exchange memory with this one's. An Error(config) where it cannot reach one of them.
void reach_gpus(Device& device, int count);

// Seconds that what `work` queues takes on such a device, by the device's own clock and behind all that was queued
// before. Waits for it.
double cuda_seconds(Device& device, const std::function<void()>& work);

}  // namespace quintet::device
