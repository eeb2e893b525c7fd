// The fake device's memory: host memory in blocks of their own between inaccessible pages, registered, poisoned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace quintet::gpu_emulator {

enum class MemoryKind : uint8_t { device, pinned };

struct Allocation {
  uintptr_t begin = 0, bytes = 0;
  MemoryKind kind = MemoryKind::device;
  int device = 0;
  bool freed = false;

  bool holds(uintptr_t address, size_t size) const {
    return !freed && address >= begin && address - begin <= bytes && size <= bytes - (address - begin);
  }
};

// Memory in which every byte is 0xFF (NaN in each float type, -1 in integers), 256-byte aligned; null if there is none.
void* allocate(size_t bytes, MemoryKind kind, int device);
// Empty, or what is wrong: not an allocation's start, freed already, of another kind, written past its end.
std::string release(void* memory, MemoryKind kind);

// The allocation, in use or freed lately, whose bytes include this one or that ends at most a page before it.
std::optional<Allocation> allocation_near(const void* address);
// Counts calls of release(): what allocation_near() said holds until then.
uint64_t releases();

// Empty if all these bytes lie in one allocation in use, else a sentence that begins with `what`.
std::string describe_misuse(const std::string& what, const void* address, size_t bytes);

// Bytes of device memory in use.
size_t device_bytes_in_use();

}  // namespace quintet::gpu_emulator
