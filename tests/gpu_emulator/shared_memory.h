// A block's shared memory and who touched which bytes of it since the last barrier: two threads of a block that use the
// same bytes without a barrier between, one of them writing, race.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace quintet::gpu_emulator {

class SharedMemory {
 public:
  SharedMemory();
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // A new block has `bytes` of dynamic shared memory, poisoned. Static shared memory keeps what the last block left.
  void begin_block(size_t bytes);
  void* dynamic() const { return dynamic_; }
  size_t dynamic_bytes() const { return bytes_; }
  bool contains(uintptr_t address) const {
    const auto first = reinterpret_cast<uintptr_t>(dynamic_);
    return (address >= first && address < first + bytes_) || (address >= static_begin_ && address < static_end_);
  }
  // All threads met, or a warp's did.
  void end_phase() { ++phase_; }
  void end_warp_phase(uint32_t warp) { ++warp_phases_[warp]; }

  enum class Verdict : uint8_t { elsewhere, fine, race, outside };
  // What an access of the block's `thread` means; `other` becomes the thread that it races with. elsewhere: not shared
  // memory. outside: beyond the dynamic part.
  Verdict access(uintptr_t address, size_t bytes, uint32_t thread, bool write, bool atomic, uint32_t& other);

 private:
  static constexpr uint32_t kNobody = 0xffffffffU, kSeveral = 0xfffffffeU;
  struct Use {
    uint32_t thread = kNobody;
    uint32_t warp_phase = 0;
    bool by_several = false;  // of the thread's warp
  };
  // Of two bytes: no element of ours is smaller.
  struct Cell {
    uint64_t phase = 0;
    Use writer, reader;
    bool writer_atomic = false;
  };
  bool ordered(const Use& use, uint32_t thread) const;
  Cell& cell(uintptr_t address);

  std::byte* pages_ = nullptr;
  std::byte* dynamic_ = nullptr;
  size_t bytes_ = 0;
  uintptr_t static_begin_ = 0, static_end_ = 0;  // this thread's thread-local storage
  uint64_t phase_ = 1;
  std::vector<uint32_t> warp_phases_;
  std::vector<Cell> static_cells_, dynamic_cells_;
};

}  // namespace quintet::gpu_emulator
