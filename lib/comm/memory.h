// The memory that a rank's messages lie in: the host's, or its device's, where each lane has queues beside the device's
// own.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "lib/comm/strand.h"
#include "lib/device/queue.h"

namespace quintet::comm {

class Memory {
 public:
  // Of the rank's device; null: all memory is the host's. No operation may be under way.
  void use(device::WorkQueue* queue);
  device::WorkQueue* queue() const { return queue_; }

  bool on_device(const void* memory) const { return queue_ != nullptr && queue_->holds(memory); }

  // For an operation that is being posted on operands there. On a device the collectives of a lane follow one another,
  // and so do the messages from and to each peer.
  std::shared_ptr<Strand> strand(const void* operand, uint8_t lane, std::optional<int64_t> peer = std::nullopt);

 private:
  device::WorkQueue* queue_ = nullptr;
  std::map<std::pair<uint8_t, std::optional<int64_t>>, std::unique_ptr<device::SideQueue>> sides_;
  std::shared_ptr<Strand> host_ = std::make_shared<Strand>();
};

}  // namespace quintet::comm
