// Ranks that share GPUs hand each other their devices' memory: beside the devices' own work, and tied to it by fences
// alone.
#include "tests/gpu_comm/gpu_ranks.h"

namespace quintet::comm {
namespace {

using gpu_emulator::StreamUse;

Outcome run(int64_t ranks, const std::function<void(Rank&)>& body) { return run(Gpus::shared, 1, ranks, body); }

// Runs this rank's streams, and others' only where its own wait for them.
void let_own_streams_run(Rank& on) { on.read(on.blank(DType::fp32, 1)); }

// Rank 0 sends a tensor of twos to rank 1. What it has its device do then has happened before rank 1's device does
// anything. What rank 1 received.
Values received_after(const std::function<void(Rank&, device::Buffer&, Handle)>& sender) {
  Values received;
  const Outcome outcome = run(2, [&](Rank& on) {
    ProcessGroup& world = on.communicator().world();
    if (on.rank() == 0) {
      device::Buffer buffer(on.device(), on.ledger(), device::Owner::workspace, DType::fp32, 100);
      on.device().fill(buffer.tensor(), 2);
      sender(on, buffer, world.send(buffer.tensor(), 1, "a tensor"));
      let_own_streams_run(on);
      world.barrier();
    } else {
      const Tensor tensor = on.blank(DType::fp32, 100);
      world.receive(tensor, 0, "a tensor").wait();
      world.barrier();
      received = on.read(tensor);
    }
  });
  require_success(outcome);
  return received;
}

}  // namespace

TEST_CASE("ranks that share a GPU compute every collective in whatever order streams go on", "[quick][cuda]") {
  for (const int64_t ranks : {1, 2, 3, 4}) {
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      gpu_emulator::set_seed(seed);
      require_success(run(ranks, [&](Rank& on) {
        ProcessGroup& group = on.communicator().world();
        Counts even(static_cast<size_t>(ranks), 5), uneven = {3, 0, 7, 1};
        uneven.resize(static_cast<size_t>(ranks));
        for (const DType dtype : {DType::fp32, DType::bf16}) {
          for (const Counts& counts : {even, uneven}) {
            check_reductions(on, group, dtype, counts, {Reduction::sum});
            check_gathers(on, group, dtype, counts);
          }
          check_all_to_all(on, group, dtype);
          if (ranks > 1) check_ring(on, group, dtype, 9);
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

TEST_CASE("groups of a mesh may be used in another order on each rank of a GPU", "[quick][cuda]") {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    gpu_emulator::set_seed(seed);
    require_success(run(4, [&](Rank& on) {
      on.communicator().set_mesh(mesh_of(2, 2));
      check_groups_in_any_order(on);
    }));
  }
}

TEST_CASE("operations on a shared GPU begin behind what the devices were told, and wait() holds up what follows",
          "[quick][cuda]") {
  int wrong = 0;
  for (uint64_t seed = 0; seed < 2 * kSeeds; ++seed) {
    for (const bool wait : {true, false}) {
      gpu_emulator::set_seed(seed);
      std::vector<Values> results(2);
      require_success(run(2, [&](Rank& on) {
        ProcessGroup& world = on.communicator().world();
        const Tensor tensor = on.blank(DType::fp32, 100), copy = on.blank(DType::fp32, 100);
        on.device().fill(tensor, 3);
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
  CHECK(wrong > 0);  // else nothing was beside anything
}

TEST_CASE("a receive that finds its message there holds up what its device is told next", "[quick][cuda]") {
  for (uint64_t seed = 0; seed < 2 * kSeeds; ++seed) {
    gpu_emulator::set_seed(seed);
    require_success(run(2, [&](Rank& on) {
      ProcessGroup& world = on.communicator().world();
      const Tensor tensor = on.put(DType::fp32, Values(100, on.rank())), copy = on.blank(DType::fp32, 100);
      Handle sent;
      if (on.rank() == 1) sent = world.send(tensor, 0, "a tensor");
      world.barrier();
      if (on.rank() == 0) world.receive(tensor, 1, "a tensor").wait();
      sent.wait();
      on.device().copy(tensor, copy);
      QUINTET_CHECK(on.read(copy) == Values(100, 1));
    }));
  }
}

TEST_CASE("a sender's memory on a shared GPU is written again only once its reader has read it", "[quick][cuda]") {
  const Values twos(100, 2);
  CHECK(received_after([](Rank& on, device::Buffer& buffer, Handle sent) {
          sent.wait();
          on.device().fill(buffer.tensor(), 7);
        }) == twos);
  CHECK(received_after([](Rank& on, device::Buffer& buffer, Handle sent) {
          while (!sent.done()) {
          }
          on.device().fill(buffer.tensor(), 7);
        }) == twos);
  CHECK(received_after([](Rank& on, device::Buffer& buffer, Handle sent) {
          sent.host_wait();
          on.device().fill(buffer.tensor(), 7);
        }) == twos);
}

TEST_CASE("memory that is given back is handed on only once ranks of a shared GPU have read it", "[quick][cuda]") {
  CHECK(received_after([](Rank& on, device::Buffer& buffer, Handle sent) {
          sent.wait();
          const void* before = buffer.tensor().data();
          buffer = {};
          // Zeroed, and the same piece again.
          buffer = device::Buffer(on.device(), on.ledger(), device::Owner::workspace, DType::fp32, 100);
          QUINTET_CHECK(buffer.tensor().data() == before);
        }) == Values(100, 2));
}

TEST_CASE("host_wait on a shared GPU ends once the operation has happened", "[quick][cuda]") {
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

TEST_CASE("an operation on a shared GPU is in no order with what its device is told meanwhile", "[quick][cuda]") {
  gpu_emulator::record_streams();
  require_success(run(2, [](Rank& on) {
    ProcessGroup& world = on.communicator().world();
    const Tensor sum = on.put(DType::fp32, values_of(on.rank(), 64)), other = on.put(DType::fp32, Values(64, 1));
    Handle handle = world.all_reduce(sum, Reduction::sum, "a tensor");
    on.device().scale(other, 3);
    handle.wait();
    on.device().scale(sum, 0.5);
    on.read(sum);
  }));
  const std::vector<StreamUse> uses = gpu_emulator::recorded_streams();
  int pairs = 0;
  for (size_t fold = 0; fold < uses.size(); ++fold) {
    if (uses[fold].what.find("fold") == std::string::npos) continue;
    std::vector<size_t> scales;
    for (size_t use = 0; use < uses.size(); ++use)
      if (uses[use].thread == uses[fold].thread && uses[use].what.find("scale") != std::string::npos)
        scales.push_back(use);
    REQUIRE(scales.size() == 2);
    CHECK(uses[fold].stream != uses[scales[0]].stream);
    const std::vector<bool> in_order = gpu_emulator::in_order_with(uses, fold);
    CHECK_FALSE(in_order[scales[0]]);
    CHECK(in_order[scales[1]]);
    ++pairs;
  }
  CHECK(pairs == 1);  // so short a tensor is added up by one rank
}

TEST_CASE("ranks of several GPUs exchange memory where those reach each other, and are refused where not",
          "[quick][cuda]") {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    gpu_emulator::set_seed(seed);
    require_success(run(Gpus::shared, 2, 4, [&](Rank& on) {
      ProcessGroup& world = on.communicator().world();
      check_reductions(on, world, DType::fp32, {5, 0, 3, 4}, {Reduction::sum});
      check_gathers(on, world, DType::fp32, {5, 0, 3, 4});
      check_ring(on, world, DType::bf16, 9);
    }));
  }
  gpu_emulator::set_devices(2);
  gpu_emulator::set_peers(false);
  const std::unique_ptr<device::Device> device = device::make_cuda_device(0, 1);
  device::reach_gpus(*device, 1);
  CHECK_THROWS_WITH(device::reach_gpus(*device, 2),
                    Catch::Matchers::StartsWith("GPU 0 cannot reach the memory of GPU 1"));
  gpu_emulator::set_peers(true);
  gpu_emulator::set_devices(1);
}

TEST_CASE("a rank that fails ends the others' waits on a shared GPU", "[quick][cuda]") {
  const Outcome outcome = run(3, [&](Rank& on) {
    ProcessGroup& world = on.communicator().world();
    const Tensor tensor = on.blank(DType::fp32, 5);
    world.all_reduce(tensor, Reduction::sum, "a first tensor").host_wait();
    Handle handle = on.rank() == 2 ? world.receive(tensor, 1, "a message that never comes")
                                   : world.all_reduce(tensor, Reduction::sum, "a second tensor");
    if (on.rank() == 1) fail(ExitCode::data, "no data any more");
    handle.wait();
  });
  CHECK(outcome.code == static_cast<int>(ExitCode::data));
  CHECK(outcome.report.empty());
}

}  // namespace quintet::comm
