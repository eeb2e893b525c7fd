// Who holds how much memory. Buffers live as long as their object; an arena hands out pieces and takes them back all at
// once or down to a mark. The ledger knows every byte by its owner, for the memory table, the metrics and the report of
// a rank that has no more.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/device/device.h"

namespace quintet::device {

// What memory is for; README's table of memory says what each holds.
enum class Owner : uint8_t {
  weights,
  gradients,
  moments,
  master_weights,
  gathered_units,  // whole weights of a unit that ZeRO 3 has brought together
  gradient_units,  // whole gradients of a unit on their way to their owners, under ZeRO 2 and 3
  activations,
  expert_buffers,  // rows that travel to experts, and what experts keep of them
  logits,
  communication,  // messages between stages, sums over replicas
  tables,         // of rotary angles
  workspace,      // within a layer
};
inline constexpr std::array kOwners = {Owner::weights,        Owner::gradients,      Owner::moments,
                                       Owner::master_weights, Owner::gathered_units, Owner::gradient_units,
                                       Owner::activations,    Owner::expert_buffers, Owner::logits,
                                       Owner::communication,  Owner::tables,         Owner::workspace};
// "master_weights".
std::string_view name_of(Owner owner);

// A number of bytes for each owner.
struct BytesByOwner {
  std::array<int64_t, kOwners.size()> values{};

  int64_t& operator[](Owner owner) { return values[static_cast<size_t>(owner)]; }
  int64_t operator[](Owner owner) const { return values[static_cast<size_t>(owner)]; }
  bool operator==(const BytesByOwner&) const = default;
};
// "weights 4.0 MiB, activations 1.5 MiB"; what holds nothing is left out.
std::string describe(const BytesByOwner& bytes);
// "1.5 MiB".
std::string mebibytes(int64_t bytes);

// One a rank. Bytes in use are those of buffers and of pieces that arenas have handed out; bytes held are what has been
// taken from the device, the room of arenas for their next pieces included.
class MemoryLedger {
 public:
  void add(Owner owner, int64_t bytes);  // in use; negative bytes: given back
  void hold(int64_t bytes);              // taken from the device; negative: released

  int64_t bytes() const { return bytes_; }
  int64_t peak_bytes() const { return peak_; }
  int64_t held_bytes() const { return held_; }
  int64_t peak_held_bytes() const { return peak_held_; }
  const BytesByOwner& by_owner() const { return by_owner_; }
  const BytesByOwner& peak_by_owner() const { return peak_by_owner_; }

  // What a user can do who has too little memory for an owner: "a smaller train.micro_batch_size or ...".
  void advise(std::function<std::string(Owner)> advice) { advice_ = std::move(advice); }
  // Throws Error(config): `owner` asked for more than the device can give.
  [[noreturn]] void out_of_memory(Owner owner, int64_t bytes) const;

 private:
  int64_t bytes_ = 0, peak_ = 0, held_ = 0, peak_held_ = 0;
  BytesByOwner by_owner_, peak_by_owner_;
  std::function<std::string(Owner)> advice_;
};

// Memory of a fixed size, zeroed.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device& device, MemoryLedger& ledger, Owner owner, DType dtype, int64_t elements);
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
  Owner owner_ = Owner::workspace;
  Tensor tensor_;
};

// A bump allocator. It takes what it is told to expect as one block. Past that it grows by blocks of what is asked for,
// and a bounded step at most above it; a reset when empty melts them into one of what was needed at once, so that a
// step that needs no more than an earlier one takes nothing from the device. Contents are not initialised.
class Arena {
 public:
  // `expected`: bytes that it will need at once, where they are known (most_used() of one in a dry run).
  Arena(Device& device, MemoryLedger& ledger, Owner owner, int64_t expected = 0);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  Tensor allocate(DType dtype, Shape shape);

  struct Mark {
    size_t block = 0;
    int64_t offset = 0;
    int64_t used = 0;
    BytesByOwner used_by_owner;
  };
  Mark mark() const { return position_; }
  // Gives back everything allocated since `mark`.
  void release_to(const Mark& mark);
  void reset() { release_to({}); }
  // Bytes in use at once, at most so far, or expected.
  int64_t most_used() const { return expected_; }

 private:
  struct Block {
    void* memory;
    int64_t bytes;
  };
  void grow(int64_t bytes);
  void release_blocks();

  Device& device_;
  MemoryLedger& ledger_;
  Owner owner_;
  std::vector<Block> blocks_;
  Mark position_;
  int64_t held_ = 0;  // in blocks
  int64_t expected_;  // to be in use at once: the most so far
  friend class OwnerScope;
};

// Has an arena book what is allocated during its life under another owner.
class OwnerScope {
 public:
  OwnerScope(Arena& arena, Owner owner) : arena_(arena), outer_(std::exchange(arena.owner_, owner)) {}
  ~OwnerScope() { arena_.owner_ = outer_; }
  OwnerScope(const OwnerScope&) = delete;
  OwnerScope& operator=(const OwnerScope&) = delete;

 private:
  Arena& arena_;
  Owner outer_;
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
