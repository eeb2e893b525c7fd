// The work of one operation on memory, and its place in the order of things. On the host all is done at once. On a
// device it is queued beside the device's own work, which it neither hurries nor holds up: it begins behind what the
// device had been told when the operation was posted, and the device waits for it where the operation's owner does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lib/base/dtype.h"
#include "lib/comm/process_group.h"
#include "lib/device/queue.h"

namespace quintet::comm {

class Strand {
 public:
  // On the host.
  Strand() = default;
  // On a device. Work goes to `side`, whose queue other operations may share.
  Strand(device::WorkQueue& queue, device::SideQueue& side) : queue_(&queue), side_(&side), past_{queue.fence()} {}

  bool on_device() const { return queue_ != nullptr; }

  // `from` is this rank's or a peer's memory of the same kind as `to`.
  void copy(std::span<const std::byte> from, std::byte* to);
  // As comm::fold. On a device sums alone.
  void fold(DType dtype, Reduction reduction, std::span<const std::byte* const> pieces, std::byte* output,
            int64_t elements);

  // The place behind all that it has done and waited for; null on the host.
  std::shared_ptr<const device::Fence> fence();
  // What it does from now on happens after that.
  void wait_for(std::shared_ptr<const device::Fence> fence) { past_.push_back(std::move(fence)); }

  // At its end: what the device is told from now on happens after all of it.
  void join();
  // Whether nothing is left to join.
  bool joined() const { return past_.empty(); }
  // Whether all of it has happened.
  bool happened() const;

 private:
  // Has the side queue come behind all that this strand has done and waited for.
  void enter_side();

  device::WorkQueue* queue_ = nullptr;
  device::SideQueue* side_ = nullptr;
  std::vector<std::shared_ptr<const device::Fence>> past_;
};

}  // namespace quintet::comm
