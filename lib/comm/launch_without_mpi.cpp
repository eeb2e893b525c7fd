// The build without MPI.
#include "lib/comm/communicator.h"

namespace quintet::comm {

std::string mpi_version() { return {}; }

int run_mpi_rank(int*, char***, const std::function<void(Communicator&)>&) {
  fail(ExitCode::config,
       "this build has no MPI (QUINTET_MPI=OFF), yet an MPI launcher started it; start it without one and give --ranks "
       "N");
}

}  // namespace quintet::comm
