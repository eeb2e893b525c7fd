#include "tests/gpu_emulator/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>

#include <fmt/core.h>

namespace quintet::gpu_emulator {
namespace {

constexpr int kPoison = 0xFF;
constexpr uintptr_t kAlignment = 256;
constexpr size_t kRemembered = 4096;  // freed blocks whose addresses are not given out again

struct Registry {
  std::mutex mutex;
  std::map<uintptr_t, Allocation> allocations;
  std::deque<uintptr_t> freed;
  std::atomic<uint64_t> releases = 0;
  size_t device_bytes = 0;
};

Registry& registry() {
  static Registry instance;
  return instance;
}

uintptr_t page_bytes() {
  static const uintptr_t bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

uintptr_t round_up(uintptr_t value, uintptr_t unit) { return (value + unit - 1) / unit * unit; }

// The pages of an allocation, guards left out: it ends as close to the guard behind it as its alignment lets it.
struct Pages {
  uintptr_t begin, bytes;
};
Pages pages_of(const Allocation& allocation) {
  const uintptr_t end = round_up(allocation.begin + std::max<uintptr_t>(allocation.bytes, 1), page_bytes());
  const uintptr_t begin = allocation.begin / page_bytes() * page_bytes();
  return {begin, end - begin};
}

}  // namespace

void* allocate(size_t bytes, MemoryKind kind, int device) {
  const uintptr_t used = round_up(std::max<uintptr_t>(bytes, 1), kAlignment);
  const uintptr_t inner = round_up(used, page_bytes());
  void* pages = mmap(nullptr, inner + 2 * page_bytes(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) return nullptr;
  auto* first = static_cast<std::byte*>(pages) + page_bytes();
  if (mprotect(first, inner, PROT_READ | PROT_WRITE) != 0) return nullptr;
  std::memset(first, kPoison, inner);
  std::byte* memory = first + (inner - used);
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  all.allocations[begin] = {begin, bytes, kind, device, false};
  if (kind == MemoryKind::device) all.device_bytes += bytes;
  return memory;
}

std::string release(void* memory, MemoryKind kind) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.allocations.find(reinterpret_cast<uintptr_t>(memory));
  if (found == all.allocations.end()) return fmt::format("{} was never allocated here", memory);
  Allocation& allocation = found->second;
  if (allocation.freed) return fmt::format("{} ({} bytes) was freed before", memory, allocation.bytes);
  if (allocation.kind != kind) return fmt::format("{} is memory of the other kind, device or pinned", memory);
  const Pages pages = pages_of(allocation);
  const auto* end = reinterpret_cast<const unsigned char*>(pages.begin + pages.bytes);
  const auto* slack = static_cast<const unsigned char*>(memory) + allocation.bytes;
  const bool intact = std::all_of(slack, end, [](unsigned char byte) { return byte == kPoison; });
  allocation.freed = true;
  if (kind == MemoryKind::device) all.device_bytes -= allocation.bytes;
  ++all.releases;
  // The address stays taken, so that a use of it is known for what it is.
  mprotect(reinterpret_cast<void*>(pages.begin), pages.bytes, PROT_NONE);
  madvise(reinterpret_cast<void*>(pages.begin), pages.bytes, MADV_DONTNEED);
  std::string report =
      intact ? std::string() : fmt::format("{} was written past its {} bytes", memory, allocation.bytes);
  all.freed.push_back(allocation.begin);
  if (all.freed.size() > kRemembered) {
    const auto oldest = all.allocations.find(all.freed.front());
    const Pages old = pages_of(oldest->second);
    munmap(reinterpret_cast<void*>(old.begin - page_bytes()), old.bytes + 2 * page_bytes());
    all.allocations.erase(oldest);
    all.freed.pop_front();
  }
  return report;
}

std::optional<Allocation> allocation_near(const void* address) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto at = reinterpret_cast<uintptr_t>(address);
  auto next = all.allocations.upper_bound(at);
  if (next == all.allocations.begin()) return std::nullopt;
  const Allocation& allocation = std::prev(next)->second;
  if (at - allocation.begin >= allocation.bytes + page_bytes()) return std::nullopt;
  return allocation;
}

uint64_t releases() { return registry().releases; }

std::string describe_misuse(const std::string& what, const void* address, size_t bytes) {
  const std::optional<Allocation> allocation = allocation_near(address);
  if (!allocation) return fmt::format("{} {}, which is not the device's memory", what, address);
  const uintptr_t offset = reinterpret_cast<uintptr_t>(address) - allocation->begin;
  if (allocation->freed) {
    return fmt::format("{} byte {} of {} bytes that were freed", what, offset, allocation->bytes);
  }
  if (allocation->holds(reinterpret_cast<uintptr_t>(address), bytes)) return {};
  return fmt::format("{} bytes {} to {} of an allocation of {} bytes", what, offset, offset + bytes, allocation->bytes);
}

size_t device_bytes_in_use() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  return all.device_bytes;
}

}  // namespace quintet::gpu_emulator
