#include "lib/device/cuda/memory_pool.h"

#include "lib/base/error.h"
#include "lib/base/integers.h"
#include "lib/device/cuda/stream.h"

namespace quintet::device::cuda {
namespace {

constexpr int64_t kSmallGrain = 512, kLargeGrain = int64_t{1} << 21;

// Few different sizes make blocks fit the next request.
int64_t block_bytes(int64_t bytes) { return round_up(bytes, bytes < kLargeGrain ? kSmallGrain : kLargeGrain); }

uintptr_t address_of(const void* memory) { return reinterpret_cast<uintptr_t>(memory); }
void* memory_at(uintptr_t address) { return reinterpret_cast<void*>(address); }  // NOLINT(performance-no-int-to-ptr)

}  // namespace

MemoryPool::~MemoryPool() {
  for (const auto& [address, bytes] : blocks_) cudaFree(memory_at(address));
}

void* MemoryPool::take(int64_t bytes) {
  QUINTET_CHECK(bytes > 0, "{} bytes", bytes);
  const int64_t wanted = block_bytes(bytes);
  if (const auto fits = idle_.lower_bound(wanted); fits != idle_.end() && fits->first <= 2 * wanted) {
    void* memory = memory_at(fits->second);
    idle_bytes_ -= fits->first;
    idle_.erase(fits);
    return memory;
  }
  void* memory = nullptr;
  cudaError_t status = cudaMalloc(&memory, narrow<size_t>(wanted));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    free_idle();
    status = cudaMalloc(&memory, narrow<size_t>(wanted));
  }
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  require_success(status);
  blocks_.emplace(address_of(memory), wanted);
  return memory;
}

void MemoryPool::give_back(void* memory) {
  const auto block = blocks_.find(address_of(memory));
  QUINTET_CHECK(block != blocks_.end(), "memory of another pool is given back");
  idle_.emplace(block->second, block->first);
  idle_bytes_ += block->second;
}

bool MemoryPool::holds(const void* memory) const {
  auto block = blocks_.upper_bound(address_of(memory));
  if (block == blocks_.begin()) return false;
  --block;
  return address_of(memory) - block->first < static_cast<uintptr_t>(block->second);
}

void MemoryPool::free_idle() {
  require_success(cudaDeviceSynchronize());  // some of it may still be in use by what is queued
  for (const auto& [bytes, address] : idle_) {
    require_success(cudaFree(memory_at(address)));
    blocks_.erase(address);
  }
  idle_.clear();
  idle_bytes_ = 0;
}

}  // namespace quintet::device::cuda
