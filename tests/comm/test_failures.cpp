#include <catch2/catch.hpp>

#include <atomic>
#include <cstdio>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include <unistd.h>

#include "lib/comm/communicator.h"
#include "lib/comm/failure.h"
#include "lib/comm/transport.h"

namespace quintet::comm {
namespace {

struct Outcome {
  int code;
  std::string message;  // standard error
};

// Runs thread ranks on a dp mesh and captures what they print.
Outcome run_captured(int64_t ranks, double watchdog_seconds, const std::function<void(Communicator&)>& body) {
  std::FILE* file = std::tmpfile();
  const int saved = dup(STDERR_FILENO);
  std::fflush(stderr);
  dup2(fileno(file), STDERR_FILENO);
  const int code = run_thread_ranks(ranks, [&](Communicator& communicator) {
    communicator.set_mesh(Mesh(PerAxis<int64_t>{{ranks, 1, 1, 1, 1}}, kAxes));
    communicator.set_watchdog(watchdog_seconds);
    body(communicator);
  });
  std::fflush(stderr);
  dup2(saved, STDERR_FILENO);
  close(saved);
  std::string message(static_cast<size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  REQUIRE(std::fread(message.data(), 1, message.size(), file) == message.size());
  std::fclose(file);
  return {code, message};
}

Tensor tensor_of(std::vector<float>& values) {
  return {values.data(), DType::fp32, {static_cast<int64_t>(values.size())}};
}

TEST_CASE("memory that runs out on one rank ends all with what to do", "[quick][comm]") {
  const Outcome outcome = run_captured(2, 5, [](Communicator& communicator) {
    if (communicator.placement().rank == 1) throw std::bad_alloc();
    communicator.world().barrier();
  });
  REQUIRE(outcome.code == 2);
  REQUIRE_THAT(outcome.message, Catch::Contains("memory ran out") && Catch::Contains("first on rank 1"));
}

TEST_CASE("a failing rank wakes all others, and its cause is printed once", "[quick][comm]") {
  for (const size_t elements : {size_t{1}, size_t{100000}}) {
    std::atomic<int> woken = 0;
    const Outcome outcome = run_captured(8, 5, [&](Communicator& communicator) {  // the watchdog ends a broken abort
      if (communicator.placement().rank == 3) fail(ExitCode::numeric, "loss is nan in step 7");
      std::vector<float> values(elements);
      try {
        communicator.world().all_reduce(tensor_of(values), Reduction::sum, "loss").wait();
      } catch (const Aborted&) {
        ++woken;
        throw;
      }
    });
    REQUIRE(woken == 7);
    REQUIRE(outcome.code == 5);
    REQUIRE(outcome.message == "error: loss is nan in step 7 (first on rank 3 (dp 3))\n");
  }
}

TEST_CASE("a config error of all ranks is printed once, as it is", "[quick][comm]") {
  const Outcome outcome =
      run_captured(8, 0, [](Communicator&) { fail(ExitCode::config, "a.yaml:1:1: mesh.dp: too large"); });
  REQUIRE(outcome.code == 2);
  REQUIRE(outcome.message == "error: a.yaml:1:1: mesh.dp: too large\n");
}

TEST_CASE("failures on one rank keep their message and code", "[quick][comm]") {
  REQUIRE(run_captured(1, 0, [](Communicator&) { fail(ExitCode::data, "x.txt: empty"); }).message ==
          "error: x.txt: empty\n");
  const Outcome broken = run_captured(1, 0, [](Communicator&) { throw std::runtime_error("odd"); });
  REQUIRE(broken.code == kInternalFailure);
  REQUIRE(broken.message == "error: odd\n");
}

TEST_CASE("a failed check names its rank", "[quick][comm]") {
  const Outcome outcome = run_captured(2, 0, [](Communicator& communicator) {
    QUINTET_CHECK(communicator.placement().rank == 0);
    communicator.world().barrier();
  });
  REQUIRE(outcome.code == kInternalFailure);
  REQUIRE_THAT(outcome.message, Catch::Contains("on rank 1 (dp 1)"));
}

TEST_CASE("the watchdog's report names blocks and ends", "[quick][comm]") {
  for (const bool block : {true, false}) {
    const Outcome outcome = run_captured(4, 0.2, [&](Communicator& communicator) {
      const int64_t rank = communicator.placement().rank;
      if (rank != 0) communicator.set_watchdog(0);
      std::vector<float> values(1);
      if (rank == 0) {
        ProcessGroup& group = block ? communicator.block(Axis::dp, 2, {}) : communicator.ends(Axis::dp, {});
        group.receive(tensor_of(values), 1, "what nobody sends").wait();
      }
      communicator.world().barrier();
    });
    REQUIRE(outcome.code == 6);
    REQUIRE_THAT(outcome.message, Catch::Contains(block ? "dp block of 2" : "dp ends"));
  }
}

TEST_CASE("the watchdog reports who waits for whom in what", "[quick][comm]") {
  const Outcome outcome = run_captured(4, 0.2, [](Communicator& communicator) {
    const int64_t rank = communicator.placement().rank;
    ProcessGroup& group = communicator.group({Axis::dp}, Axis::dp);
    std::vector<float> values(40000), piece(10000);
    if (rank == 2) {
      // Never joins; waits, outlasting the others, for the end of the world.
      communicator.set_watchdog(0);
      std::vector<float> never(1);
      group.receive(tensor_of(never), 0, "what nobody sends").wait();
    }
    const std::vector<int64_t> counts(4, 10000);
    Handle handle = group.reduce_scatter(tensor_of(values), counts, tensor_of(piece), "gradients of bucket 3");
    handle.wait();
  });
  REQUIRE(outcome.code == 6);
  REQUIRE_THAT(outcome.message, Catch::Contains("waited 0.2 s for reduce-scatter of gradients of bucket 3 (160000 "
                                                "bytes) over dp; waits for rank 2 (dp 2)"));
  REQUIRE_THAT(outcome.message, Catch::StartsWith("error: rank ") && !Catch::Contains("first on"));
}

TEST_CASE("progress throws once the world is ending", "[quick][comm]") {
  const Outcome outcome = run_captured(3, 0, [](Communicator& communicator) {
    if (communicator.placement().rank == 1) fail(ExitCode::data, "gone");
    for (;;) communicator.progress();
  });
  REQUIRE(outcome.code == 3);
}

TEST_CASE("a rank that unwinds takes its operands back before they die", "[quick][comm]") {
  // Under the address and thread sanitizers a peer that still read them would be caught.
  for (int round = 0; round < 20; ++round) {
    const Outcome outcome = run_captured(4, 0, [&](Communicator& communicator) {
      ProcessGroup& group = communicator.world();
      std::vector<float> values(200000, 1);
      const std::vector<int64_t> counts(4, 50000);
      std::vector<float> piece(50000);
      Handle handle = group.reduce_scatter(tensor_of(values), counts, tensor_of(piece), "gradients");
      if (group.rank() == round % 4) fail(ExitCode::numeric, "nan");
      handle.wait();
      group.barrier();
    });
    REQUIRE(outcome.code == 5);
  }
}

TEST_CASE("ends of a message that disagree on its size fail", "[quick][comm]") {
  const Outcome outcome = run_captured(2, 0, [](Communicator& communicator) {
    ProcessGroup& group = communicator.world();
    std::vector<float> values(group.rank() == 0 ? 4 : 5);
    if (group.rank() == 0) {
      group.send(tensor_of(values), 1, "activations").wait();
      group.barrier();
    } else {
      group.receive(tensor_of(values), 0, "activations").wait();
    }
  });
  REQUIRE(outcome.code == kInternalFailure);
  REQUIRE_THAT(outcome.message, Catch::Contains("rank 0 sent 16 bytes where 20 are expected"));
}

}  // namespace
}  // namespace quintet::comm
