#include <string>

#include <fmt/core.h>

#include "apps/quintet/commands.h"
#include "build_facts.h"
#include "lib/comm/communicator.h"
#include "lib/device/cuda/cuda_device.h"
#include "lib/device/device.h"

namespace quintet {

std::string version_text() {
  const std::string mpi = comm::mpi_version();
  const device::CudaSupport cuda = device::cuda_support();
  std::string text = fmt::format("quintet {} ({}, {})\nbuilt in: cpu, thread ranks, {}", QUINTET_VERSION,
                                 QUINTET_REVISION, QUINTET_BUILD_TYPE, mpi.empty() ? "no MPI" : mpi);
  text += cuda.built_in.empty() ? "\nnot built in: cuda" : ", " + cuda.built_in;
  if (const std::string nccl = comm::nccl_version(); !nccl.empty()) text += ", " + nccl;
  text += "\ndevices: " + device::make_cpu_device(1)->description();
  for (const std::string& gpu : cuda.gpus) text += ", " + gpu;
  if (!cuda.built_in.empty() && !cuda.problem.empty()) text += "; " + cuda.problem;
  return text;
}

}  // namespace quintet
