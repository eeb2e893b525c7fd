#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>

#include <mpi.h>
#include <sched.h>

#include "lib/comm/communicator.h"
#include "lib/comm/mpi_transport.h"

namespace quintet::comm {
namespace {

// "Open MPI 4.1.4" out of "Open MPI v4.1.4, package: ..."; "MPICH 4.0.2" out of "MPICH Version:\t4.0.2\n...".
std::string library_name() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string version(text, static_cast<size_t>(length));
  const size_t digit = version.find_first_of("0123456789");
  if (digit == std::string::npos) return version.substr(0, version.find('\n'));
  const std::string number = version.substr(digit, version.find_first_not_of("0123456789.", digit) - digit);
  if (version.starts_with("Open MPI")) return "Open MPI " + number;
  return version.substr(0, version.find_first_of(" \t\n")) + " " + number;
}

// CPUs that the ranks of `node` may use, all together: a launcher may have bound each to its own.
int64_t count_cpus(MPI_Comm node) {
  cpu_set_t own;
  CPU_ZERO(&own);
  sched_getaffinity(0, sizeof(own), &own);
  cpu_set_t all;
  MPI_Allreduce(&own, &all, sizeof(own), MPI_BYTE, MPI_BOR, node);
  return std::max(1, CPU_COUNT(&all));
}

Placement find_placement() {
  int rank = 0, size = 1, local_rank = 0, local_size = 1, length = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm node = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
  MPI_Comm_rank(node, &local_rank);
  MPI_Comm_size(node, &local_size);
  const int64_t cpus = count_cpus(node);
  MPI_Comm_free(&node);
  char name[MPI_MAX_PROCESSOR_NAME] = {};
  MPI_Get_processor_name(name, &length);
  return {rank, size, local_rank, local_size, cpus, name, "MPI (" + library_name() + ")"};
}

volatile std::sig_atomic_t end_code = 0;  // for the signal handler

// Ends the process without MPI_Finalize, which would wait for messages that nobody takes any more.
// MPICH's launcher kills all other ranks as soon as one ends and drops what they have said: time for that to be read.
[[noreturn]] void end_process(int code) {
  std::fflush(nullptr);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  std::_Exit(code);
}

// Where peers did not stop in time, MPI may read operands of withdrawn sends that have been given back by now.
void end_quietly_on_faults(int code) {
  end_code = code;
  for (const int signal : {SIGSEGV, SIGBUS}) std::signal(signal, [](int) { std::_Exit(end_code); });
}

}  // namespace

std::string mpi_version() { return library_name(); }

int run_mpi_rank(int* argc, char*** argv, const std::function<void(Communicator&)>& body) {
  int provided = 0;
  MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided);
  const Placement placement = find_placement();
  {
    auto owned_transport = std::make_unique<MpiTransport>(placement.local_size > placement.local_cpus);
    MpiTransport& transport = *owned_transport;
    Communicator communicator(placement, std::move(owned_transport));
    try {
      body(communicator);
      communicator.drain();
      communicator.world().barrier();
    } catch (...) {
      const auto cause =
          cause_of(std::current_exception(), communicator.label_of(placement.rank), placement.world_size == 1);
      end_quietly_on_faults(cause ? cause->code : static_cast<int>(ExitCode::communication));
      end_process(transport.agree_on(cause).code);
    }
  }
  MPI_Finalize();
  return 0;
}

}  // namespace quintet::comm
