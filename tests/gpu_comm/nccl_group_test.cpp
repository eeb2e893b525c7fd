// Tensors on devices travel over NCCL, behind what their device is doing; those of the host go on as messages.
#include "tests/gpu_comm/gpu_ranks.h"

namespace quintet::comm {
namespace {

Outcome run(int64_t ranks, const std::function<void(Rank&)>& body, int gpus = 8) {
  return run(Gpus::own, gpus, ranks, body);
}

}  // namespace

TEST_CASE("NCCL groups compute every collective for every type, on even and uneven pieces", "[quick][nccl]") {
  for (const int64_t ranks : {2, 3, 4}) {
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      gpu_emulator::set_seed(seed);
      require_success(run(ranks, [&](Rank& on) {
        ProcessGroup& group = on.communicator().world();
        Counts even(static_cast<size_t>(ranks), 5), uneven = {3, 0, 7, 1};
        uneven.resize(static_cast<size_t>(ranks));
        for (const DType dtype : {DType::fp32, DType::fp64, DType::bf16, DType::i64, DType::i32, DType::u8}) {
          for (const Counts& counts : {even, uneven}) {
            check_reductions(on, group, dtype, counts, {Reduction::sum, Reduction::max});
            check_gathers(on, group, dtype, counts);
          }
          check_all_to_all(on, group, dtype);
          check_ring(on, group, dtype, 9);
          for (int64_t root = 0; root < ranks; ++root) {
            const Tensor tensor = on.put(dtype, values_of(on.rank(), 3));
            group.broadcast(tensor, root, "a tensor").wait();
            QUINTET_CHECK(on.read(tensor) == values_of(root, 3));
          }
        }
      }));
    }
  }
}

TEST_CASE("NCCL groups of a mesh may be begun and used in another order on each rank", "[quick][nccl]") {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    gpu_emulator::set_seed(seed);
    require_success(run(4, [&](Rank& on) {
      on.communicator().set_mesh(mesh_of(2, 2));
      check_groups_in_any_order(on);
      // Counted once, under the axis of the group: 44 bytes in two pieces and back.
      QUINTET_CHECK(on.communicator().traffic().operations[Axis::dp] == 3);
      QUINTET_CHECK(on.communicator().traffic().bytes[Axis::dp] == 3 * 44);
    }));
  }
}

TEST_CASE("a device that does not wait for NCCL reads too early, one that does reads the sum", "[quick][nccl]") {
  int wrong = 0;
  for (uint64_t seed = 0; seed < 2 * kSeeds; ++seed) {
    for (const bool wait : {true, false}) {
      gpu_emulator::set_seed(seed);
      std::vector<Values> results(2);
      require_success(run(2, [&](Rank& on) {
        ProcessGroup& world = on.communicator().world();
        const Tensor tensor = on.blank(DType::fp32, 100), copy = on.blank(DType::fp32, 100);
        on.device().fill(tensor, 3);  // queued: NCCL must not begin before
        Handle handle = world.all_reduce(tensor, Reduction::sum, "a tensor");
        if (wait) handle.wait();
        on.device().copy(tensor, copy);
        results[static_cast<size_t>(on.rank())] = on.read(copy);
        handle.wait();
      }));
      const bool right = results == std::vector<Values>(2, Values(100, 6));
      if (wait) REQUIRE(right);
      wrong += right ? 0 : 1;
    }
  }
  CHECK(wrong > 0);
}

TEST_CASE("host_wait ends once NCCL has finished on the device", "[quick][nccl]") {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    gpu_emulator::set_seed(seed);
    require_success(run(2, [&](Rank& on) {
      const Tensor tensor = on.put(DType::fp32, values_of(on.rank(), 7));
      on.communicator().world().all_reduce(tensor, Reduction::sum, "a tensor").host_wait();
      // The emulated device's memory is the host's.
      QUINTET_CHECK(static_cast<int64_t>(tensor.as<float>()[5]) == values_of(0, 7)[5] + values_of(1, 7)[5]);
    }));
  }
}

TEST_CASE("tensors of the host go as messages where devices talk over NCCL", "[quick][nccl]") {
  require_success(run(3, [](Rank& on) {
    ProcessGroup& world = on.communicator().world();
    const Tensor on_device = on.put(DType::fp32, values_of(on.rank(), 6));
    Handle device_sum = world.all_reduce(on_device, Reduction::sum, "a tensor");
    Values counts = values_of(on.rank(), 4);
    world.all_reduce(Tensor(counts.data(), DType::i64, {4}), Reduction::sum, "counts").wait();
    QUINTET_CHECK(counts == reduced(world.members(), 4, Reduction::sum));
    world.barrier();
    device_sum.wait();
    QUINTET_CHECK(on.read(on_device) == reduced(world.members(), 6, Reduction::sum));
  }));
}

TEST_CASE("NCCL operations that do not match end the run with a report", "[quick][nccl]") {
  const Outcome outcome = run(2, [](Rank& on) {
    const Tensor tensor = on.blank(DType::fp32, 5 + on.rank());
    on.communicator().world().all_reduce(tensor, Reduction::sum, "a tensor").host_wait();
  });
  CHECK(outcome.code != 0);
  CHECK_THAT(outcome.report, Catch::Matchers::Contains(" meets ncclAllReduce of "));
}

TEST_CASE("a rank that fails ends the others' waits for NCCL, joined or not", "[quick][nccl]") {
  for (const bool joined : {false, true}) {
    const Outcome outcome = run(3, [&](Rank& on) {
      ProcessGroup& world = on.communicator().world();
      const Tensor tensor = on.blank(DType::fp32, 5);
      if (joined) world.all_reduce(tensor, Reduction::sum, "a first tensor").host_wait();
      if (on.rank() == 1) fail(ExitCode::data, "no data any more");
      Handle handle = world.all_reduce(tensor, Reduction::sum, "a second tensor");
      if (joined && on.rank() == 0) {
        handle.wait();
        on.read(tensor);  // where the host waits for its device
      }
      handle.host_wait();
    });
    CHECK(outcome.code == static_cast<int>(ExitCode::data));
    CHECK(outcome.report.empty());
  }
}

TEST_CASE("NCCL's refusal of two ranks on one GPU ends the run", "[quick][nccl]") {
  const Outcome outcome = run(
      2,
      [](Rank& on) {
        const Tensor tensor = on.blank(DType::fp32, 5);
        on.communicator().world().all_reduce(tensor, Reduction::sum, "a tensor").wait();
      },
      1);
  CHECK(outcome.code == static_cast<int>(ExitCode::communication));
}

}  // namespace quintet::comm
