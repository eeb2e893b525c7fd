// Ranks as threads of one process: a message is a note in the receiver's mailbox that says where the sender's memory
// is. Waits block on the mailbox's condition variable; nothing spins.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "lib/comm/failure.h"
#include "lib/comm/transport.h"

namespace quintet::comm {

// One message. Its memory may be read only between begin_read() and end_read(); the sender can take it back in between.
class Letter {
 public:
  // Small data is copied, so that the sender need not wait. `written`, of memory on a device: behind what writes it.
  Letter(int64_t from, std::span<const std::byte> data, std::shared_ptr<const device::Fence> written);

  int64_t from() const { return from_; }
  std::span<const std::byte> data() const { return data_; }
  bool copied() const { return copy_ != nullptr; }
  // Of memory on a device, else null.
  const std::shared_ptr<const device::Fence>& written() const { return written_; }

  bool begin_read();  // false: taken back
  // `read`, of memory on a device: behind what reads it.
  void end_read(bool consumed, std::shared_ptr<const device::Fence> read = nullptr);
  bool consumed() const { return state_.load(std::memory_order_acquire) == State::consumed; }
  const std::shared_ptr<const device::Fence>& read() const { return read_; }  // once consumed
  // Waits for a running read to end.
  void take_back();

  bool awaited = false;  // by the sender; guarded by its mailbox's mutex

 private:
  enum class State : int { lent, reading, consumed, taken_back };
  int64_t from_;
  std::unique_ptr<std::byte[]> copy_;
  std::span<const std::byte> data_;
  std::shared_ptr<const device::Fence> written_, read_;
  std::atomic<State> state_{State::lent};
};

// What the thread ranks share.
class ThreadWorld {
 public:
  explicit ThreadWorld(int64_t ranks);

  int64_t size() const { return static_cast<int64_t>(mailboxes_.size()); }

  // Ends the world: wakes every rank, whose waits throw Aborted. The first cause stays.
  void abort(const Cause& cause);
  std::optional<Cause> cause() const;
  bool aborted() const { return aborted_.load(std::memory_order_acquire); }

 private:
  friend class ThreadTransport;
  friend class ThreadOutgoing;
  friend class ThreadIncoming;

  struct Key {
    int64_t from;
    Tag tag;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const {
      const auto mixed = static_cast<uint64_t>(key.from) * 0x9E3779B97F4A7C15ULL +
                         static_cast<uint64_t>(key.tag.sequence) * 0xC2B2AE3D27D4EB4FULL +
                         static_cast<uint64_t>(key.tag.channel) * 0x165667B19E3779F9ULL + key.tag.lane;
      return static_cast<size_t>(mixed ^ (mixed >> 29));
    }
  };
  struct Slot {
    std::shared_ptr<Letter> letter;
    bool wanted = false;  // the owner's polls wait for it
  };
  struct alignas(64) Mailbox {
    std::mutex mutex;
    std::condition_variable changed;
    uint64_t events = 0;  // what the owner waits for and has happened
    std::unordered_map<Key, Slot, KeyHash> slots;
  };

  std::vector<std::unique_ptr<Mailbox>> mailboxes_;
  std::atomic<bool> aborted_{false};
  mutable std::mutex cause_mutex_;
  std::optional<Cause> cause_;
};

class ThreadTransport : public Transport {
 public:
  ThreadTransport(std::shared_ptr<ThreadWorld> world, int64_t rank) : world_(std::move(world)), rank_(rank) {}

  std::unique_ptr<Outgoing> send(int64_t peer, Tag tag, std::span<const std::byte> data, Strand& strand) override;
  std::unique_ptr<Incoming> receive_into(int64_t peer, Tag tag, std::span<std::byte> destination,
                                         Strand& strand) override;
  std::unique_ptr<Incoming> receive(int64_t peer, Tag tag, int64_t bytes, Strand& strand) override;
  void progress() override;
  uint64_t events() override;
  void nap(uint64_t seen_events, int64_t rounds) override;
  bool carries_device_memory() const override { return true; }

 private:
  friend class ThreadOutgoing;
  friend class ThreadIncoming;
  ThreadWorld::Mailbox& mailbox(int64_t rank) { return *world_->mailboxes_[static_cast<size_t>(rank)]; }
  ThreadWorld::Mailbox& own_mailbox() { return mailbox(rank_); }

  std::shared_ptr<ThreadWorld> world_;
  int64_t rank_;
};

}  // namespace quintet::comm
