#include "tests/gpu_emulator/shared_memory.h"

#include <link.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/gpu_emulator/grid.h"

namespace quintet::gpu_emulator {
namespace {

// Around the dynamic part, where an access is taken for one that missed it.
constexpr size_t kMargin = 64 * 1024;
constexpr size_t kPages = kMaxSharedBytes + 2 * kMargin;

// The calling thread's storage for thread-local variables of the executable, where static shared memory lies.
std::pair<uintptr_t, uintptr_t> thread_local_storage() {
  std::pair<uintptr_t, uintptr_t> range;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          if (info->dlpi_phdr[i].p_type != PT_TLS || info->dlpi_tls_data == nullptr) continue;
          const auto begin = reinterpret_cast<uintptr_t>(info->dlpi_tls_data);
          *static_cast<std::pair<uintptr_t, uintptr_t>*>(data) = {begin, begin + info->dlpi_phdr[i].p_memsz};
        }
        return 1;  // the executable comes first
      },
      &range);
  return range;
}

}  // namespace

SharedMemory::SharedMemory()
    : pages_(new std::byte[kPages + 128]), warp_phases_(kMaxThreads / 32), dynamic_cells_(kMaxSharedBytes / 2 + 1) {
  std::tie(static_begin_, static_end_) = thread_local_storage();
  static_cells_.resize((static_end_ - static_begin_) / 2 + 1);
  const auto start = reinterpret_cast<uintptr_t>(pages_) + kMargin;
  dynamic_ = pages_ + kMargin + (start % 128 == 0 ? 0 : 128 - start % 128);
}

SharedMemory::~SharedMemory() { delete[] pages_; }

void SharedMemory::begin_block(size_t bytes) {
  bytes_ = bytes;
  std::memset(dynamic_, 0xFF, bytes);
  end_phase();
}

SharedMemory::Cell& SharedMemory::cell(uintptr_t address) {
  const auto first = reinterpret_cast<uintptr_t>(dynamic_);
  return address >= static_begin_ && address < static_end_ ? static_cells_[(address - static_begin_) / 2]
                                                           : dynamic_cells_[(address - first) / 2];
}

// Whether what was done lies before what `thread` does now, both in one phase of the block.
bool SharedMemory::ordered(const Use& use, uint32_t thread) const {
  if (use.thread == kNobody) return true;
  if (use.thread / 32 != thread / 32) return false;
  return use.warp_phase != warp_phases_[thread / 32] || (use.thread == thread && !use.by_several);
}

SharedMemory::Verdict SharedMemory::access(uintptr_t address, size_t bytes, uint32_t thread, bool write, bool atomic,
                                           uint32_t& other) {
  const auto first = reinterpret_cast<uintptr_t>(dynamic_);
  if (address < static_begin_ || address >= static_end_) {
    const auto begin = reinterpret_cast<uintptr_t>(pages_);
    if (address < begin || address >= begin + kPages) return Verdict::elsewhere;
    if (address < first || address + bytes > first + bytes_) return Verdict::outside;
  }
  for (uintptr_t at = address; at < address + bytes; at += 2) {
    Cell& c = cell(at);
    if (c.phase != phase_) {
      c = Cell();
      c.phase = phase_;
    }
    if (!(atomic && c.writer_atomic) && !ordered(c.writer, thread)) {
      other = c.writer.thread;
      return Verdict::race;
    }
    if (write && !atomic && !ordered(c.reader, thread)) {
      other = c.reader.thread;
      return Verdict::race;
    }
    const Use use = {thread, warp_phases_[thread / 32], false};
    if (write) {
      c.writer = use;
      c.writer_atomic = atomic;
    } else if (ordered(c.reader, thread)) {
      c.reader = use;
    } else if (c.reader.thread != kSeveral) {
      // Readers of one warp are remembered as such, for its next writer may be behind them.
      if (c.reader.thread / 32 == thread / 32) {
        c.reader.by_several = true;
      } else {
        c.reader.thread = kSeveral;
      }
    }
  }
  return Verdict::fine;
}

}  // namespace quintet::gpu_emulator
