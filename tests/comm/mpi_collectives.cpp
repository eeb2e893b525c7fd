// The checks of test_collectives over MPI; run by mpirun with any number of ranks.
//   mpi_collectives            check collectives
//   mpi_collectives fail MODE  end in a planned failure: config (all ranks), data (one rank), unwind, watchdog
//   mpi_collectives bench MIB [REPEATS] [threads N]   time an fp32 all-reduce
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "collective_checks.h"

namespace quintet::comm {
namespace {

void check_all(Communicator& communicator) {
  uint64_t seed = 0;
  for (const DType dtype : {DType::fp64, DType::fp32, DType::bf16, DType::i64, DType::i32, DType::u8})
    for (const int64_t elements : {0, 1, 3, 17, 1023, 40003})
      check_collectives(communicator, {Axis::dp}, {dtype, elements, ++seed});
  // Several pieces of a mebibyte in each message.
  check_collectives(communicator, {Axis::dp}, {DType::fp64, 1300003, ++seed});
  const int64_t ranks = communicator.placement().world_size;
  for (const int64_t elements : {3, 1023, 40003})
    check_sub_groups(communicator, Axis::dp, ranks % 2 == 0 ? 2 : 1, {DType::fp32, elements, ++seed});
  if (communicator.placement().rank == 0) std::puts("all collectives agree with the serial model");
}

void end_in(const std::string& mode, Communicator& communicator) {
  ProcessGroup& group = communicator.world();
  if (mode == "config") fail(ExitCode::config, "a.yaml:1:1: mesh.dp: too large");
  if (mode == "data" && group.rank() == group.size() - 1) fail(ExitCode::data, "x.txt: empty");
  std::vector<float> values(8 << 20, 1), piece(values.size() / static_cast<size_t>(group.size()));
  const Tensor whole(values.data(), DType::fp32, {static_cast<int64_t>(piece.size()) * group.size()});
  const std::vector<int64_t> counts(static_cast<size_t>(group.size()), static_cast<int64_t>(piece.size()));
  if (mode == "watchdog") {
    communicator.set_watchdog(group.rank() == 0 ? 0 : 1);
    if (group.rank() == 0) group.receive(whole, 1, "what nobody sends").wait();
  }
  Handle handle = group.reduce_scatter(whole, counts, {piece.data(), DType::fp32, {counts[0]}}, "gradients");
  if (mode == "unwind" && group.rank() == 1) fail(ExitCode::numeric, "loss is nan");
  handle.wait();
  group.barrier();
}

void bench(int64_t mebibytes, int repeats, Communicator& communicator) {
  std::vector<float> values(static_cast<size_t>(mebibytes << 18), 1);
  const Tensor tensor(values.data(), DType::fp32, {mebibytes << 18});
  using Clock = std::chrono::steady_clock;
  const auto timed = [&](const char* what, const Tensor& operand, int times) {
    communicator.world().barrier();
    const auto start = Clock::now();
    for (int i = 0; i < times; ++i) communicator.world().all_reduce(operand, Reduction::max, "bench").wait();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count() / times;
    if (communicator.placement().rank == 0)
      std::printf("%s: %.1f us, %.2f GB/s\n", what, seconds * 1e6,
                  static_cast<double>(operand.bytes()) * 1e-9 / seconds);
  };
  timed("first", tensor, 1);
  timed("large", tensor, repeats);
  timed("4 KiB", {values.data(), DType::fp32, {1024}}, repeats * 20);
  timed("64 KiB", {values.data(), DType::fp32, {16384}}, repeats * 20);
}

}  // namespace
}  // namespace quintet::comm

int main(int argc, char** argv) {
  using namespace quintet;
  using namespace quintet::comm;
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const auto body = [&](Communicator& communicator) {
    const int64_t ranks = communicator.placement().world_size;
    communicator.set_mesh(Mesh(PerAxis<int64_t>{{ranks, 1, 1, 1, 1}}, kAxes));
    communicator.set_watchdog(60);
    if (arguments.empty()) {
      check_all(communicator);
    } else if (arguments[0] == "fail") {
      end_in(arguments.at(1), communicator);
    } else {
      bench(std::stol(arguments.at(1)), arguments.size() > 2 ? std::stoi(arguments[2]) : 10, communicator);
    }
  };
  if (arguments.size() > 4 && arguments[3] == "threads") return run_thread_ranks(std::stol(arguments[4]), body);
  return run_mpi_rank(&argc, &argv, body);
}
