#include "lib/device/host_memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "lib/base/error.h"
#include "lib/base/integers.h"

namespace quintet::device {
namespace {

constexpr int64_t kHugePage = int64_t{1} << 21;
constexpr int64_t kAlignment = 64;

[[noreturn]] void out_of_memory(int64_t bytes) {
  fail(
      ExitCode::config,
      "the system gave no {} MiB of memory for one buffer; use fewer ranks on this machine, a smaller micro_batch_size "
      "or a smaller model",
      bytes >> 20);
}

// Maps `bytes`, a multiple of the huge page, at a multiple of the huge page.
void* map_huge_pages(int64_t bytes) {
  const size_t mapped = static_cast<size_t>(bytes + kHugePage);
  void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) out_of_memory(bytes);
  const auto address = reinterpret_cast<uintptr_t>(memory);
  const auto aligned = (address + kHugePage - 1) / kHugePage * kHugePage;
  const size_t before = aligned - address, after = static_cast<size_t>(kHugePage) - before;
  if (before != 0) munmap(memory, before);
  void* start = static_cast<std::byte*>(memory) + before;
  if (after != 0) munmap(static_cast<std::byte*>(start) + bytes, after);
  madvise(start, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // only speed is lost where the kernel declines
  return start;
}

}  // namespace

void* allocate_host(int64_t bytes) {
  QUINTET_CHECK(bytes > 0, "{} bytes", bytes);
  if (bytes >= kHugePage) return map_huge_pages(round_up(bytes, kHugePage));
  const size_t size = static_cast<size_t>(round_up(bytes, kAlignment));
  void* memory = std::aligned_alloc(kAlignment, size);
  if (memory == nullptr) out_of_memory(bytes);
  std::memset(memory, 0, size);
  return memory;
}

void release_host(void* memory, int64_t bytes) {
  if (bytes >= kHugePage) {
    munmap(memory, static_cast<size_t>(round_up(bytes, kHugePage)));
  } else {
    std::free(memory);
  }
}

}  // namespace quintet::device
