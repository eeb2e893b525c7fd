// The memory that a rank's messages lie in: the host's, where things are done at once, or its device's, where they are
// done in the device's order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lib/base/dtype.h"
#include "lib/comm/process_group.h"
#include "lib/device/queue.h"

namespace quintet::comm {

class Memory {
 public:
  // Of the rank's device; null: all memory is the host's.
  void use(device::WorkQueue* queue) { queue_ = queue; }
  device::WorkQueue* queue() const { return queue_; }

  bool on_device(const void* memory) const { return queue_ != nullptr && queue_->holds(memory); }

  // `from` is this rank's or a peer's memory of the same kind as `to`.
  void copy(std::span<const std::byte> from, std::byte* to) const;
  // As comm::fold; all pieces are of the same kind of memory as `output`. On a device sums alone.
  void fold(DType dtype, Reduction reduction, std::span<const std::byte* const> pieces, std::byte* output,
            int64_t elements) const;

 private:
  device::WorkQueue* queue_ = nullptr;
};

}  // namespace quintet::comm
