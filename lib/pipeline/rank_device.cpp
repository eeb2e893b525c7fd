#include "lib/pipeline/rank_device.h"

#include <algorithm>

#include "lib/base/integers.h"
#include "lib/comm/null_world.h"
#include "lib/device/cuda/cuda_device.h"
#include "lib/device/host_memory.h"

namespace quintet::pipeline {

int threads_of(const config::Config& config, const comm::Placement& placement) {
  if (config.device.threads > 0) return narrow<int>(config.device.threads);
  return narrow<int>(std::max<int64_t>(1, placement.local_cpus / placement.local_size));
}

std::unique_ptr<device::Device> make_rank_device(const config::Config& config, const comm::Placement& placement) {
  const int threads = threads_of(config, placement);
  const bool must = config.device.kind == config::DeviceKind::cuda;
  // Who asks for cuda has no fp64: the config refuses both together.
  if (config.device.kind == config::DeviceKind::cpu || config.precision.compute == config::ComputeType::fp64)
    return device::make_cpu_device(threads);
  const device::CudaSupport support = device::cuda_support();
  if (must && support.gpus.empty())
    fail(ExitCode::config, "device.kind: cuda cannot be had: {}; or choose cpu", support.problem);
  if (support.gpus.empty()) return device::make_cpu_device(threads);
  const auto ordinal = static_cast<size_t>(placement.local_rank) % support.gpus.size();
  return device::make_cuda_device(static_cast<int>(ordinal), threads);
}

std::unique_ptr<comm::DeviceGroups> make_rank_groups(comm::Communicator& communicator, device::Device& device) {
  const comm::Placement& placement = communicator.placement();
  if (placement.world_size == 1) return nullptr;
  if (!device.computes()) return comm::make_null_groups();
  int64_t keeps_off = device.queue() == nullptr || placement.local_size > device::cuda_devices() ? 1 : 0;
  communicator.world()
      .all_reduce(Tensor(&keeps_off, DType::i64, {1}), comm::Reduction::max, "whether ranks share a GPU")
      .wait();
  std::unique_ptr<comm::DeviceGroups> groups;
  if (keeps_off == 0) groups = comm::make_nccl_groups(*device.queue());
  if (!groups && device.queue() != nullptr && communicator.carries_device_memory())
    device::reach_gpus(device, static_cast<int>(std::min<int64_t>(placement.local_size, device::cuda_devices())));
  return groups;
}

AvailableMemory available_memory(const device::Device& device, const comm::Placement& placement) {
  const std::optional<int64_t> free = device.free_bytes();
  if (!free) return {.gpu = std::nullopt, .bytes = device::available_host_memory()};
  return {.gpu = placement.local_rank % std::max(1, device::cuda_devices()), .bytes = *free};
}

}  // namespace quintet::pipeline
