// Tensors on devices travel over NCCL, behind what their device is doing; those of the host go on as messages.
#include <catch2/catch.hpp>

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "lib/base/random.h"
#include "lib/comm/communicator.h"
#include "lib/device/cuda/cuda_device.h"
#include "lib/device/memory.h"
#include "tests/gpu_emulator/emulator.h"

namespace quintet::comm {
namespace {

constexpr uint64_t kSeeds = 10;
using Counts = std::vector<int64_t>;
using Values = std::vector<int64_t>;

// A rank with a GPU of its own.
class Rank {
 public:
  Rank(Communicator& communicator, int gpu)
      : communicator_(communicator),
        device_(device::make_cuda_device(gpu, 1)),
        scope_(communicator, *device_, make_nccl_groups(*device_->queue())) {}

  Communicator& communicator() { return communicator_; }
  device::Device& device() { return *device_; }
  int64_t rank() const { return communicator_.placement().rank; }

  Tensor blank(DType dtype, int64_t elements) { return arena_.allocate(dtype, {elements}); }
  Tensor put(DType dtype, const Values& values) {
    const Tensor tensor = blank(dtype, static_cast<int64_t>(values.size()));
    std::vector<std::byte> bytes(static_cast<size_t>(tensor.bytes()));
    const Tensor host(bytes.data(), dtype, tensor.shape());
    visit_dtype(dtype, [&]<typename T>() {
      for (size_t i = 0; i < values.size(); ++i) {
        if constexpr (std::is_same_v<T, bfloat16>) {
          host.as<T>()[i] = T(static_cast<float>(values[i]));
        } else {
          host.as<T>()[i] = static_cast<T>(values[i]);
        }
      }
    });
    device_->copy(host, tensor);
    return tensor;
  }
  Values read(const Tensor& tensor) {
    std::vector<std::byte> bytes(static_cast<size_t>(tensor.bytes()));
    const Tensor host(bytes.data(), tensor.dtype(), tensor.shape());
    device_->copy(tensor, host);
    Values values(static_cast<size_t>(tensor.elements()));
    visit_dtype(tensor.dtype(), [&]<typename T>() {
      for (size_t i = 0; i < values.size(); ++i) {
        if constexpr (std::is_same_v<T, bfloat16>) {
          values[i] = static_cast<int64_t>(static_cast<float>(host.as<T>()[i]));
        } else {
          values[i] = static_cast<int64_t>(host.as<T>()[i]);
        }
      }
    });
    return values;
  }

 private:
  Communicator& communicator_;
  std::unique_ptr<device::Device> device_;
  device::MemoryLedger ledger_;
  device::Arena arena_{*device_, ledger_, "test"};
  DeviceScope scope_;
};

// The exit code of `ranks` ranks, and the emulator's report.
struct Outcome {
  int code;
  std::string report;
};
Outcome run(int64_t ranks, const std::function<void(Rank&)>& body, int gpus = 8) {
  gpu_emulator::set_devices(gpus);
  const int code = run_thread_ranks(ranks, [&](Communicator& communicator) {
    Rank rank(communicator, static_cast<int>(communicator.placement().rank) % gpus);
    body(rank);
  });
  gpu_emulator::set_devices(1);
  return {code, gpu_emulator::take_report()};
}
void require_success(const Outcome& outcome) {
  REQUIRE(outcome.report.empty());
  REQUIRE(outcome.code == 0);
}

// Whole numbers from 0 to 19, which every type adds without rounding.
Values values_of(int64_t rank, int64_t count) {
  Values values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = philox(5, i, static_cast<uint64_t>(rank))[0] % 20;
  return values;
}
Values reduced(std::span<const int64_t> members, int64_t count, Reduction reduction) {
  Values result(static_cast<size_t>(count));
  for (const int64_t member : members) {
    const Values values = values_of(member, count);
    for (size_t i = 0; i < result.size(); ++i)
      result[i] = reduction == Reduction::sum ? result[i] + values[i] : std::max(result[i], values[i]);
  }
  return result;
}
Values part(const Values& values, int64_t begin, int64_t count) {
  return {values.begin() + begin, values.begin() + begin + count};
}
int64_t begin_of(const Counts& counts, int64_t member) {
  return std::accumulate(counts.begin(), counts.begin() + member, int64_t{0});
}
int64_t sum_of(const Counts& counts) { return begin_of(counts, static_cast<int64_t>(counts.size())); }

void check_reductions(Rank& on, ProcessGroup& group, DType dtype, const Counts& counts) {
  const int64_t all = sum_of(counts), begin = begin_of(counts, group.rank());
  const int64_t own = counts[static_cast<size_t>(group.rank())];
  for (const Reduction reduction : {Reduction::sum, Reduction::max}) {
    const Tensor tensor = on.put(dtype, values_of(on.rank(), all));
    group.all_reduce(tensor, reduction, "a tensor").wait();
    QUINTET_CHECK(on.read(tensor) == reduced(group.members(), all, reduction));
  }
  const Values expected = part(reduced(group.members(), all, Reduction::sum), begin, own);
  const Tensor input = on.put(dtype, values_of(on.rank(), all)), output = on.blank(dtype, own);
  group.reduce_scatter(input, counts, output, "pieces").wait();
  QUINTET_CHECK(on.read(output) == expected);
  QUINTET_CHECK(on.read(input) == values_of(on.rank(), all));
  group.reduce_scatter(input, counts, input.rows(begin, own), "pieces in place").wait();
  QUINTET_CHECK(on.read(input.rows(begin, own)) == expected);
}

void check_gathers(Rank& on, ProcessGroup& group, DType dtype, const Counts& counts) {
  const int64_t all = sum_of(counts), begin = begin_of(counts, group.rank());
  const int64_t own = counts[static_cast<size_t>(group.rank())];
  Values expected;
  for (int64_t m = 0; m < group.size(); ++m) {
    const Values piece = values_of(group.members()[static_cast<size_t>(m)], counts[static_cast<size_t>(m)]);
    expected.insert(expected.end(), piece.begin(), piece.end());
  }
  const Tensor input = on.put(dtype, values_of(on.rank(), own)), output = on.blank(dtype, all);
  group.all_gather(input, counts, output, "pieces").wait();
  QUINTET_CHECK(on.read(output) == expected);
  const Tensor both = on.blank(dtype, all);
  on.device().copy(input, both.rows(begin, own));
  group.all_gather(both.rows(begin, own), counts, both, "pieces in place").wait();
  QUINTET_CHECK(on.read(both) == expected);
}

// Member a sends (a + 2 b) mod 4 elements to member b: none to some.
void check_all_to_all(Rank& on, ProcessGroup& group, DType dtype) {
  const auto count = [](int64_t from, int64_t to) { return (from + 2 * to) % 4; };
  Counts sent, received;
  Values expected;
  for (int64_t m = 0; m < group.size(); ++m) {
    sent.push_back(count(group.rank(), m));
    received.push_back(count(m, group.rank()));
  }
  for (int64_t m = 0; m < group.size(); ++m) {
    Counts theirs;
    for (int64_t to = 0; to < group.size(); ++to) theirs.push_back(count(m, to));
    const Values values = values_of(group.members()[static_cast<size_t>(m)], sum_of(theirs));
    const Values piece = part(values, begin_of(theirs, group.rank()), count(m, group.rank()));
    expected.insert(expected.end(), piece.begin(), piece.end());
  }
  const Tensor input = on.put(dtype, values_of(on.rank(), sum_of(sent))), output = on.blank(dtype, sum_of(received));
  group.all_to_all(input, sent, output, received, "pieces for all").wait();
  QUINTET_CHECK(on.read(output) == expected);
}

// Both ways round a ring at once; some send first and some receive first.
void check_ring(Rank& on, ProcessGroup& group, DType dtype, int64_t count) {
  const int64_t next = (group.rank() + 1) % group.size(), last = (group.rank() + group.size() - 1) % group.size();
  const Tensor mine = on.put(dtype, values_of(on.rank(), count));
  const Tensor from_last = on.blank(dtype, count), from_next = on.blank(dtype, count);
  std::vector<std::function<Handle()>> posts = {
      [&] { return group.send(mine, next, "up"); }, [&] { return group.receive(from_last, last, "up"); },
      [&] { return group.send(mine, last, "down"); }, [&] { return group.receive(from_next, next, "down"); }};
  // Between two members up and down are the same way, so that their order is what tells them apart.
  const bool reversed = group.size() > 2 && group.rank() % 2 == 1;
  if (reversed) std::reverse(posts.begin(), posts.end());
  std::vector<Handle> handles;
  for (const auto& post : posts) handles.push_back(post());
  for (Handle& handle : handles) handle.wait();
  QUINTET_CHECK(on.read(from_last) == values_of(group.members()[static_cast<size_t>(last)], count));
  QUINTET_CHECK(on.read(from_next) == values_of(group.members()[static_cast<size_t>(next)], count));
}

Mesh mesh_of(int64_t dp, int64_t tp) {
  return {{{dp, tp, 1, 1, 1}}, {Axis::tp, Axis::cp, Axis::ep, Axis::dp, Axis::pp}};
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
            check_reductions(on, group, dtype, counts);
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
      std::vector<ProcessGroup*> groups = {&on.communicator().group({Axis::dp}, Axis::dp),
                                           &on.communicator().group({Axis::tp}, Axis::tp),
                                           &on.communicator().group({Axis::dp, Axis::tp}, std::nullopt)};
      std::rotate(groups.begin(), groups.begin() + on.rank() % 3, groups.end());
      for (int round = 0; round < 3; ++round) {
        std::vector<Tensor> tensors;
        std::vector<Handle> handles;
        for (ProcessGroup* group : groups) {
          tensors.push_back(on.put(DType::fp32, values_of(on.rank(), 11)));
          handles.push_back(group->all_reduce(tensors.back(), Reduction::sum, "a tensor"));
        }
        for (size_t i = groups.size(); i-- > 0;) {
          handles[i].wait();
          QUINTET_CHECK(on.read(tensors[i]) == reduced(groups[i]->members(), 11, Reduction::sum));
        }
      }
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
