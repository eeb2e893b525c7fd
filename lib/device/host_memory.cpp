#include "lib/device/host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

#include "lib/base/error.h"
#include "lib/base/integers.h"

namespace quintet::device {
namespace {

constexpr int64_t kHugePage = int64_t{1} << 21;
constexpr int64_t kAlignment = 64;

// Pieces as large as this are taken only where the kernel says that there is so much: it grants a mapping all the same,
// and ends the process when it is touched.
constexpr int64_t kLargePiece = int64_t{1} << 24;

// The number that a file of the kernel starts with after `label`; nothing where it says none ("max") or is not there.
std::optional<int64_t> kernel_number(const char* path, const std::string& label = "") {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, label.size(), label) != 0) continue;
    const size_t digit = line.find_first_not_of(' ', label.size());
    if (digit == std::string::npos || std::isdigit(static_cast<unsigned char>(line[digit])) == 0) return {};
    return std::stoll(line.substr(digit));
  }
  return {};
}

// Maps `bytes`, a multiple of the huge page, at a multiple of the huge page.
void* map_huge_pages(int64_t bytes) {
  const size_t mapped = static_cast<size_t>(bytes + kHugePage);
  void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
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

int64_t available_host_memory() {
  int64_t bytes = std::numeric_limits<int64_t>::max();
  if (const auto kibibytes = kernel_number("/proc/meminfo", "MemAvailable:")) bytes = *kibibytes * 1024;
  const auto limit = kernel_number("/sys/fs/cgroup/memory.max");
  const auto used = kernel_number("/sys/fs/cgroup/memory.current");
  if (limit && used) bytes = std::min(bytes, std::max<int64_t>(0, *limit - *used));
  return bytes;
}

void* allocate_host(int64_t bytes) {
  QUINTET_CHECK(bytes > 0, "{} bytes", bytes);
  if (bytes >= kLargePiece && bytes > available_host_memory()) return nullptr;
  if (bytes >= kHugePage) return map_huge_pages(round_up(bytes, kHugePage));
  const size_t size = static_cast<size_t>(round_up(bytes, kAlignment));
  void* memory = std::aligned_alloc(kAlignment, size);
  if (memory == nullptr) return nullptr;
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
