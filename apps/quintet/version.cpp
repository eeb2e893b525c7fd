#include <string>

#include <fmt/core.h>

#include "apps/quintet/commands.h"
#include "build_facts.h"
#include "lib/comm/communicator.h"
#include "lib/device/device.h"

namespace quintet {

std::string version_text() {
  const std::string mpi = comm::mpi_version();
  return fmt::format("quintet {} ({}, {})\nbuilt in: cpu, thread ranks, {}\nnot built in: cuda\ndevices: {}",
                     QUINTET_VERSION, QUINTET_REVISION, QUINTET_BUILD_TYPE, mpi.empty() ? "no MPI" : mpi,
                     device::make_cpu_device(1)->description());
}

}  // namespace quintet
