#include "apps/quintet/launch.h"

#include <atomic>
#include <cstdio>

#include <fmt/core.h>

namespace quintet {
namespace {

int run_threads(int64_t ranks, const std::function<int(comm::Communicator&)>& body) {
  std::atomic<int> result{0};  // of rank 0; all ranks agree
  const int failure = comm::run_thread_ranks(ranks, [&](comm::Communicator& communicator) {
    const int code = body(communicator);
    if (communicator.placement().rank == 0) result = code;
  });
  return failure != 0 ? failure : result.load();
}

}  // namespace

int run_ranks(int64_t ranks, int* argc, char*** argv, const std::function<int(comm::Communicator&)>& body) {
  if (!comm::launched_by_mpi()) return run_threads(ranks == 0 ? 1 : ranks, body);
  int result = 0;
  const int failure = comm::run_mpi_rank(argc, argv, [&](comm::Communicator& communicator) {
    const int64_t processes = communicator.placement().world_size;
    if (ranks > 0 && processes > 1)
      fail(ExitCode::config,
           "--ranks {}: the launcher has started {} processes, each of them a rank; leave out --ranks, or start one "
           "process",
           ranks, processes);
    result = ranks > 1 ? run_threads(ranks, body) : body(communicator);
  });
  return failure != 0 ? failure : result;
}

int refuse(ExitCode code, const std::string& message, int* argc, char*** argv) {
  if (comm::launched_by_mpi() && !comm::mpi_version().empty())
    return comm::run_mpi_rank(argc, argv, [&](comm::Communicator&) { fail(code, "{}", message); });
  fmt::print(stderr, "error: {}\n", message);
  return static_cast<int>(code);
}

}  // namespace quintet
