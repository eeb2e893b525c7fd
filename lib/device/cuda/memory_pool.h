// Device memory of one rank. The runtime's allocator is slow and halts the device, so that pieces given back are kept
// for the next of their size.
#pragma once

#include <cstdint>
#include <map>

namespace quintet::device::cuda {

class MemoryPool {
 public:
  MemoryPool() = default;
  // Everything goes back, given back or not.
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  // `bytes` > 0 bytes of any content, 256-byte aligned. They may have been given back while work that uses them was
  // queued: use them in the order of the same queue, on others behind a fence of it. Null if the device has no
  // more.
  void* take(int64_t bytes);
  // As given by take().
  void give_back(void* memory);

  bool holds(const void* memory) const;
  // Bytes kept for later.
  int64_t idle_bytes() const { return idle_bytes_; }

 private:
  void free_idle();

  std::map<uintptr_t, int64_t> blocks_;     // sizes by address, in use or idle
  std::multimap<int64_t, uintptr_t> idle_;  // by size
  int64_t idle_bytes_ = 0;
};

}  // namespace quintet::device::cuda
