#include <catch2/catch.hpp>

#include "tests/gpu_emulator/emulator.h"
#include "tests/gpu_emulator/test_kernels.h"
#include "tests/support/device_memory.h"

using namespace quintet;
using namespace quintet::testing;
using Catch::Matchers::Contains;

namespace {

// The report of what `launch` does on a stream.
template <typename Launch>
std::string report_of(Launch&& launch) {
  const Stream stream;
  launch(stream);
  cudaStreamSynchronize(stream);
  return gpu_emulator::take_report();
}

}  // namespace

TEST_CASE("a thread that ends while others wait at the barrier is reported", "[quick][emulator]") {
  const std::string report = report_of([](cudaStream_t stream) { some_threads_leave(64, stream); });
  CHECK_THAT(report, Contains("leaving_kernel, block (0, 0, 0), thread (0, 0, 0): divergence") &&
                         Contains("test_kernels.cu:") && Contains("thread (5, 0, 0), which has ended"));
}

TEST_CASE("threads that wait at different barriers are reported", "[quick][emulator]") {
  CHECK(report_of([](cudaStream_t stream) { barriers_in_branches(32, stream); }).empty());
  const std::string report = report_of([](cudaStream_t stream) { barriers_in_branches(64, stream); });
  CHECK_THAT(report, Contains("branching_kernel") && Contains("thread (0, 0, 0): divergence") &&
                         Contains("thread (32, 0, 0), which waits in __syncthreads"));
}

TEST_CASE("a warp collective is reported when lanes of its mask stay away or its mask is wrong", "[quick][emulator]") {
  CHECK_THAT(report_of([](cudaStream_t stream) { shuffle_in_branch(stream); }),
             Contains("waits in __shfl_xor_sync") && Contains("thread (16, 0, 0), which has ended"));
  CHECK_THAT(report_of([](cudaStream_t stream) { shuffle_with_foreign_mask(stream); }),
             Contains("mask 0x000000ff lacks lane"));
  CHECK_THAT(report_of([](cudaStream_t stream) { shuffle_from_outside_mask(stream); }),
             Contains("a shuffle reads a lane outside its mask"));
}

TEST_CASE("a missing barrier is reported as a race in shared memory", "[quick][emulator]") {
  const DeviceArray<float> input(std::vector<float>(256, 1.0F)), output(1);
  CHECK(report_of([&](cudaStream_t stream) { block_sums(1, 256, input, output, stream); }).empty());
  CHECK_THAT(report_of([&](cudaStream_t stream) { block_sums_without_barrier(1, 256, input, output, stream); }),
             Contains("block_sum_kernel<false>") && Contains("shared memory in a race with thread ("));
}

TEST_CASE("an access beyond shared memory is reported", "[quick][emulator]") {
  const DeviceArray<float> input(std::vector<float>(64, 1.0F)), output(64);
  CHECK_THAT(report_of([&](cudaStream_t stream) { reverse_blocks(1, 64, 1, input, output, stream); }),
             Contains("thread (63, 0, 0): writes byte 252 of 252 bytes of shared memory"));
  const DeviceArray<int> element(1);
  CHECK(report_of([&](cudaStream_t stream) { write_static_array(7, element, stream); }).empty());
  CHECK_THAT(report_of([&](cudaStream_t stream) { write_static_array(8, element, stream); }),
             Contains("static_array_kernel") && Contains("uses element 8 of a smaller array at"));
}

TEST_CASE("a block that waits for the turn of a later one is reported", "[quick][emulator]") {
  const DeviceArray<int32_t> turn(std::vector<int32_t>(1)), order(3);
  CHECK(report_of([&](cudaStream_t stream) { take_turns(3, true, turn, order, stream); }).empty());
  CHECK(order.read(Stream()) == std::vector<int32_t>{0, 1, 2});
  const DeviceArray<int32_t> backwards(std::vector<int32_t>(1));
  CHECK_THAT(report_of([&](cudaStream_t stream) { take_turns(3, false, backwards, order, stream); }),
             Contains("turns_kernel<false>, block (0, 0, 0)") && Contains("waits for the turn of a block"));
}

TEST_CASE("accesses outside an allocation, to freed, host or misaligned memory are reported", "[quick][emulator]") {
  const DeviceArray<float> output(100);
  const auto report = [&](float* to, int64_t offset, bool wide) {
    return report_of([&](cudaStream_t stream) { write_one(to, offset, wide, stream); });
  };
  CHECK(report(output, 99, false).empty());
  CHECK(report(output, 96, true).empty());
  CHECK_THAT(report(output, 100, false), Contains("writes bytes 400 to 404 of an allocation of 400 bytes"));
  CHECK_THAT(report(output, -1, false), Contains("not the device's memory"));
  CHECK_THAT(report(output, 97, true), Contains("-byte aligned"));
  float on_host = 0;
  CHECK_THAT(report(&on_host, 0, false), Contains("not the device's memory"));
  float* freed = nullptr;
  kernels::cuda::require_success(cudaMalloc(&freed, 64));
  CHECK(report(freed, 0, false).empty());
  kernels::cuda::require_success(cudaFree(freed));
  CHECK_THAT(report(freed, 2, false), Contains("writes byte 8 of 64 bytes that were freed"));
}

TEST_CASE("a kernel's access to another device's memory is reported until it is given", "[quick][emulator]") {
  gpu_emulator::set_devices(2);
  const DeviceArray<float> there(8);
  kernels::cuda::require_success(cudaSetDevice(1));
  const auto report = [&] { return report_of([&](cudaStream_t stream) { write_one(there, 2, false, stream); }); };
  CHECK_THAT(report(), Contains("writes memory of device 0, to which device 1 has no access"));
  CHECK(cudaDeviceEnablePeerAccess(1, 0) == cudaErrorPeerAccessUnsupported);
  CHECK(cudaDeviceEnablePeerAccess(2, 0) == cudaErrorInvalidDevice);
  CHECK(cudaDeviceEnablePeerAccess(0, 0) == cudaSuccess);
  CHECK(cudaDeviceEnablePeerAccess(0, 0) == cudaErrorPeerAccessAlreadyEnabled);
  CHECK(report().empty());
  gpu_emulator::set_peers(false);
  CHECK(cudaDeviceEnablePeerAccess(0, 0) == cudaErrorPeerAccessUnsupported);
  gpu_emulator::set_peers(true);
  cudaGetLastError();
  kernels::cuda::require_success(cudaSetDevice(0));
  gpu_emulator::set_devices(1);
}

TEST_CASE("memory that is freed before the work on it has run is reported", "[quick][emulator]") {
  const Stream stream;
  float* memory = nullptr;
  kernels::cuda::require_success(cudaMalloc(&memory, 64));
  write_one(memory, 0, false, stream);
  kernels::cuda::require_success(cudaFree(memory));
  CHECK(cudaStreamSynchronize(stream) == cudaErrorIllegalAddress);
  CHECK_THAT(cudaGetErrorString(cudaErrorIllegalAddress), Contains("write_kernel") && Contains("freed"));
  CHECK_THAT(gpu_emulator::take_report(), Contains("freed"));
}

TEST_CASE("the runtime refuses what a device would, and says where it was asked", "[quick][emulator]") {
  const Stream stream;
  const DeviceArray<float> memory(16);
  std::vector<float> host(32);
  CHECK(cudaMemcpyAsync(memory.data(), host.data(), 65, cudaMemcpyHostToDevice, stream) == cudaErrorInvalidValue);
  CHECK_THAT(cudaGetErrorString(cudaErrorInvalidValue), Contains("bytes 0 to 65 of an allocation of 64 bytes"));
  CHECK(cudaMemcpyAsync(host.data(), host.data() + 16, 4, cudaMemcpyDeviceToHost, stream) == cudaErrorInvalidValue);
  CHECK(cudaMemsetAsync(host.data(), 0, 4, stream) == cudaErrorInvalidValue);
  CHECK(cudaMemsetAsync(memory.data(), 0, 4, nullptr) == cudaErrorInvalidResourceHandle);
  CHECK(cudaFree(memory.data() + 1) == cudaErrorInvalidValue);
  CHECK_THROWS_WITH(block_sums(1, 1025, memory, memory, stream),
                    Contains("test_kernels.cu") && Contains("cudaErrorInvalidConfiguration"));
  CHECK_THROWS_WITH(reverse_blocks(1, 32, -(int64_t{64} << 10), memory, memory, stream), Contains("shared memory"));
  cudaGetLastError();
}
