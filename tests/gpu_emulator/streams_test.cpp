#include <catch2/catch.hpp>

#include <thread>

#include "tests/gpu_emulator/emulator.h"
#include "tests/gpu_emulator/test_kernels.h"
#include "tests/support/device_memory.h"

using namespace quintet;
using namespace quintet::testing;
using kernels::cuda::require_success;

namespace {

constexpr uint64_t kSeeds = 20;

struct Event {
  cudaEvent_t handle = nullptr;
  Event() { require_success(cudaEventCreateWithFlags(&handle, cudaEventDisableTiming)); }
  ~Event() { cudaEventDestroy(handle); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
};

// One stream makes a ramp, a second copies it: what the copy holds at place 3.
float copied_by_a_second_stream(bool wait) {
  const Stream first, second;
  const Event made;
  const DeviceArray<float> ramp(std::vector<float>(64)), copy(64);
  fill_ramp(64, 2, ramp, first);
  require_success(cudaEventRecord(made.handle, first));
  if (wait) require_success(cudaStreamWaitEvent(second, made.handle, 0));
  require_success(cudaMemcpyAsync(copy.data(), ramp.data(), 256, cudaMemcpyDeviceToDevice, second));
  first.synchronise();
  return copy.read(second)[3];
}

}  // namespace

TEST_CASE("a missing wait for another stream shows as a wrong number, the wait mends it", "[quick][emulator]") {
  int wrong = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    gpu_emulator::set_seed(seed);
    CHECK(copied_by_a_second_stream(true) == 6);
    gpu_emulator::set_seed(seed);
    wrong += copied_by_a_second_stream(false) == 6 ? 0 : 1;
  }
  CHECK(wrong > 0);
  CHECK(wrong < static_cast<int>(kSeeds));
}

TEST_CASE("nothing has happened before somebody waits, so pinned memory changed too early is read changed",
          "[quick][emulator]") {
  const Stream stream;
  const DeviceArray<float> memory(4);
  float* pinned = nullptr;
  require_success(cudaMallocHost(&pinned, 16));
  for (int i = 0; i < 4; ++i) pinned[i] = 1;
  require_success(cudaMemcpyAsync(memory.data(), pinned, 16, cudaMemcpyHostToDevice, stream));
  pinned[2] = 7;
  CHECK(memory.read(stream)[2] == 7);
  require_success(cudaFreeHost(pinned));

  // Pageable memory is read before the call returns.
  std::vector<float> pageable(4, 1);
  require_success(cudaMemcpyAsync(memory.data(), pageable.data(), 16, cudaMemcpyHostToDevice, stream));
  pageable[2] = 7;
  CHECK(memory.read(stream)[2] == 1);
}

TEST_CASE("an event tells when what came before it is done, and one never recorded holds nobody up",
          "[quick][emulator]") {
  const Stream stream, other;
  const Event event;
  const DeviceArray<float> ramp(8);
  require_success(cudaStreamWaitEvent(other, event.handle, 0));
  other.synchronise();
  CHECK(cudaEventQuery(event.handle) == cudaSuccess);
  fill_ramp(8, 1, ramp, stream);
  require_success(cudaEventRecord(event.handle, stream));
  int questions = 0;
  while (cudaEventQuery(event.handle) == cudaErrorNotReady) REQUIRE(++questions < 1000);
  CHECK(cudaStreamQuery(stream) == cudaSuccess);
  fill_ramp(8, 3, ramp, stream);
  require_success(cudaEventRecord(event.handle, stream));
  require_success(cudaEventSynchronize(event.handle));
  CHECK(ramp.read(stream)[2] == 6);
}

TEST_CASE("a record of streams tells which uses are ordered, by their stream or by events", "[quick][emulator]") {
  const Stream first, second;
  const Event made;
  const DeviceArray<float> ramp(std::vector<float>(64)), copy(64);
  gpu_emulator::record_streams();
  fill_ramp(64, 2, ramp, first);                                                                      // 0
  require_success(cudaEventRecord(made.handle, first));                                               // 1
  fill_ramp(64, 3, ramp, first);                                                                      // 2
  require_success(cudaMemsetAsync(copy, 0, 4, second));                                               // 3
  require_success(cudaStreamWaitEvent(second, made.handle));                                          // 4
  require_success(cudaMemcpyAsync(copy.data(), ramp.data(), 256, cudaMemcpyDeviceToDevice, second));  // 5
  const std::vector<gpu_emulator::StreamUse> uses = gpu_emulator::recorded_streams();
  first.synchronise();
  second.synchronise();
  REQUIRE(uses.size() == 6);
  CHECK_THAT(uses[0].what, Catch::Matchers::Contains("ramp"));
  CHECK(uses[5].what == "copy");
  CHECK(uses[0].stream != uses[5].stream);
  CHECK(gpu_emulator::in_order_with(uses, 5) == std::vector<bool>{true, true, false, true, true, true});
  CHECK(gpu_emulator::in_order_with(uses, 0) == std::vector<bool>{true, true, true, false, true, true});
  CHECK(gpu_emulator::in_order_with(uses, 3) == std::vector<bool>{false, false, false, true, true, true});
}

TEST_CASE("threads of the host with streams of their own do not disturb each other", "[quick][emulator]") {
  std::vector<std::thread> ranks;
  std::vector<int> wrong(4);
  for (size_t rank = 0; rank < wrong.size(); ++rank) {
    ranks.emplace_back([&wrong, rank] {
      for (int repeat = 0; repeat < 20; ++repeat) {
        const Stream stream;
        const auto scale = static_cast<float>(rank + 1);
        const DeviceArray<float> input(std::vector<float>(256, scale)), sums(2);
        block_sums(2, 128, input, sums, stream);
        if (sums.read(stream) != std::vector<float>(2, 128 * scale)) ++wrong[rank];
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  CHECK(wrong == std::vector<int>(4));
}

TEST_CASE("a thread that waits for another thread's stream gets its work done", "[quick][emulator]") {
  const Stream first;
  const Event made;
  const DeviceArray<float> ramp(std::vector<float>(64)), copy(64);
  fill_ramp(64, 2, ramp, first);
  require_success(cudaEventRecord(made.handle, first));
  float copied = 0;
  std::thread([&] {
    const Stream second;
    require_success(cudaStreamWaitEvent(second, made.handle, 0));
    require_success(cudaMemcpyAsync(copy.data(), ramp.data(), 256, cudaMemcpyDeviceToDevice, second));
    copied = copy.read(second)[3];
  }).join();
  CHECK(copied == 6);
}

TEST_CASE("after a fault nothing runs and every call says so", "[quick][emulator]") {
  const Stream stream;
  const DeviceArray<float> ramp(std::vector<float>(8));
  write_one(ramp, 8, false, stream);
  CHECK(cudaStreamSynchronize(stream) == cudaErrorIllegalAddress);
  CHECK(cudaMemsetAsync(ramp.data(), 1, 4, stream) == cudaErrorIllegalAddress);
  CHECK_THROWS_AS(fill_ramp(8, 1, ramp, stream), CheckFailure);
  CHECK_FALSE(gpu_emulator::take_report().empty());
  CHECK(ramp.read(stream) == std::vector<float>(8));
  cudaGetLastError();
}
