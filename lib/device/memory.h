// Who holds how much memory. Buffers live as long as their object; an arena hands out pieces and takes them back all at
// once or down to a mark. The ledger knows every byte by the name of its owner, for the memory table and the metrics.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lib/device/device.h"

namespace quintet::device {

// Bytes in use by owner ("weights", "gradients", "optimizer", "activations", "scratch", ...) and their peak; one a
// rank.
class MemoryLedger {
 public:
  void add(const std::string& owner, int64_t bytes);  // negative bytes: given back
  int64_t bytes() const { return bytes_; }
  int64_t peak_bytes() const { return peak_; }
  const std::map<std::string, int64_t>& peak_by_owner() const { return peak_by_owner_; }

 private:
  int64_t bytes_ = 0, peak_ = 0;
  std::map<std::string, int64_t> by_owner_, peak_by_owner_;
};

// Memory of a fixed size, zeroed.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device& device, MemoryLedger& ledger, std::string owner, DType dtype, int64_t elements);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  Tensor tensor() const { return tensor_; }
  // `count` elements from `begin` on, as [count].
  Tensor slice(int64_t begin, int64_t count) const { return tensor_.rows(begin, count); }

 private:
  void release();
  Device* device_ = nullptr;
  MemoryLedger* ledger_ = nullptr;
  std::string owner_;
  Tensor tensor_;
};

// A bump allocator. It grows by blocks while it learns what a step needs; a reset when empty melts them into one.
// Contents are not initialised.
class Arena {
 public:
  Arena(Device& device, MemoryLedger& ledger, std::string owner);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  Tensor allocate(DType dtype, Shape shape);

  struct Mark {
    size_t block = 0;
    int64_t offset = 0;
    int64_t used = 0;
  };
  Mark mark() const { return position_; }
  // Gives back everything allocated since `mark`.
  void release_to(Mark mark);
  void reset() { release_to({}); }

 private:
  struct Block {
    void* memory;
    int64_t bytes;
  };
  Device& device_;
  MemoryLedger& ledger_;
  std::string owner_;
  std::vector<Block> blocks_;
  Mark position_;
  int64_t peak_ = 0;
};

// Releases what was allocated from an arena during its life.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
  ~ArenaScope() { arena_.release_to(mark_); }
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena& arena_;
  Arena::Mark mark_;
};

}  // namespace quintet::device
