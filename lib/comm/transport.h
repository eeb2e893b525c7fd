// How bytes travel between ranks: posted messages that lend memory instead of copying it. One object a rank.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>

#include "lib/base/error.h"
#include "lib/comm/memory.h"
#include "lib/mesh/mesh.h"

namespace quintet::comm {

// What a message belongs to. A lane names at most one group between two ranks, and both ends count its operations,
// those of each channel for themselves, so a tag names one message of a pair, whatever order the ends poll in.
struct Tag {
  uint8_t lane = 0;
  int64_t sequence = 0;
  uint16_t channel = 0;
  bool operator==(const Tag&) const = default;
};

inline constexpr uint8_t kWorldLane = 1 << kAxisCount;         // lanes below are masks of axes
inline constexpr uint8_t kBlockLane = kWorldLane + 1;          // of the first axis' blocks; the other axes follow
inline constexpr uint8_t kEndsLane = kBlockLane + kAxisCount;  // of the first axis' ends, likewise
inline constexpr uint8_t kLanes = kEndsLane + kAxisCount;
inline constexpr uint8_t kChannelLane = kLanes;   // by which device groups find each other, see device_groups.h
inline constexpr uint8_t kPointToPointLane = 64;  // added to the lane of send and receive
inline constexpr int64_t kEagerBytes = 4096;      // messages up to this size never keep their sender waiting
static_assert(kChannelLane < kPointToPointLane);

// Thrown by waits of ranks that learn of another's failure.
class Aborted : public Error {
 public:
  explicit Aborted(const std::string& cause) : Error(ExitCode::communication, "the run is ending: " + cause) {}
};

// A posted send; its memory is lent until done. Destroyed earlier, it takes the memory back: the peer can no longer
// read.
class Outgoing {
 public:
  virtual ~Outgoing() = default;
  virtual bool done() = 0;
};

// A posted receive. One with a destination is ready once everything has arrived there. One without is read piece by
// piece: when ready, open() shows the next piece where it lies, and close() gives it back.
class Incoming {
 public:
  virtual ~Incoming() = default;
  virtual bool ready() = 0;
  virtual std::span<const std::byte> open() = 0;
  virtual void close() = 0;
};

class Transport {
 public:
  Transport() = default;
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  // Messages are never empty, and both ends know their size. Receives without destination of the same size come in the
  // same pieces, a multiple of 64 bytes each but the last.
  // `strand` is their operation's and outlives them: memory on a device is read and written by it.
  virtual std::unique_ptr<Outgoing> send(int64_t peer, Tag tag, std::span<const std::byte> data, Strand& strand) = 0;
  virtual std::unique_ptr<Incoming> receive_into(int64_t peer, Tag tag, std::span<std::byte> destination,
                                                 Strand& strand) = 0;
  virtual std::unique_ptr<Incoming> receive(int64_t peer, Tag tag, int64_t bytes, Strand& strand) = 0;

  // Moves messages on; throws Aborted when the world is ending.
  virtual void progress() = 0;
  // A snapshot to be taken before polling, and a nap after fruitless polling that ends when something happened since.
  // `rounds` counts the polls without movement.
  virtual uint64_t events() = 0;
  virtual void nap(uint64_t seen_events, int64_t rounds) = 0;

  // This rank unwinds with messages under way, all withdrawn by now. Returns once no peer can read its memory any more,
  // or when that takes too long.
  virtual void halt() noexcept {}

  // Whether messages may lie in the memory of devices. They then arrive, and are given back, in the order of their
  // strands: the host goes on before.
  virtual bool carries_device_memory() const { return false; }
  Memory& memory() { return memory_; }

  // Grows with each message or piece that came or was taken.
  int64_t moves() const { return moves_; }

  Tag next_tag(uint8_t lane) { return {lane, sequences_[lane]++}; }
  Tag next_send_tag(uint8_t lane, int64_t peer, uint16_t channel) {
    return pair_tag(send_sequences_, lane, peer, channel);
  }
  Tag next_receive_tag(uint8_t lane, int64_t peer, uint16_t channel) {
    return pair_tag(receive_sequences_, lane, peer, channel);
  }

 protected:
  void moved() { ++moves_; }

 private:
  using PairSequences = std::map<std::tuple<uint8_t, int64_t, uint16_t>, int64_t>;  // by lane, peer, channel
  static Tag pair_tag(PairSequences& sequences, uint8_t lane, int64_t peer, uint16_t channel) {
    return {static_cast<uint8_t>(lane | kPointToPointLane), sequences[{lane, peer, channel}]++, channel};
  }

  Memory memory_;
  int64_t moves_ = 0;
  std::array<int64_t, kLanes> sequences_{};
  PairSequences send_sequences_, receive_sequences_;
};

}  // namespace quintet::comm
