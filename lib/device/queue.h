// The orders in which a device works off what it is told, for devices whose operations go on after the call that asked
// for them has returned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "lib/base/dtype.h"

namespace quintet::device {

// A place in a queue's order.
class Fence {
 public:
  Fence() = default;
  virtual ~Fence() = default;
  Fence(const Fence&) = delete;
  Fence& operator=(const Fence&) = delete;

  // Whether the device has come past it.
  virtual bool happened() const = 0;
};

// An order beside the device's own, for the copies and sums of communication: only fences tie the two together.
class SideQueue {
 public:
  SideQueue() = default;
  virtual ~SideQueue() = default;
  SideQueue(const SideQueue&) = delete;
  SideQueue& operator=(const SideQueue&) = delete;

  // Both are queued; what they read may lie in the memory of another rank's device.
  virtual void copy_bytes(const void* from, void* to, int64_t bytes) = 0;
  // output[i] = ((pieces[0][i] + pieces[1][i]) + pieces[2][i]) + ..., bf16 in fp32 and rounded once. output may be one
  // of the pieces.
  virtual void sum_pieces(DType dtype, std::span<const std::byte* const> pieces, std::byte* output,
                          int64_t elements) = 0;

  // As WorkQueue's.
  virtual std::shared_ptr<const Fence> fence() = 0;
  virtual void wait_for(const Fence& fence) = 0;
};

// The order of the device's operations, one a device and rank. Nothing here waits for the device.
class WorkQueue {
 public:
  WorkQueue() = default;
  virtual ~WorkQueue() = default;
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // Whether this memory is the device's own, never touched by the host.
  virtual bool holds(const void* memory) const = 0;

  // The place behind all that is queued by now. It may be waited for by other queues, as often as they like.
  virtual std::shared_ptr<const Fence> fence() = 0;
  // What is queued from now on happens after `fence`, another queue's or this one's.
  virtual void wait_for(const Fence& fence) = 0;
  // A queue beside this one, in no order with it. Its end waits for what it still holds.
  virtual std::unique_ptr<SideQueue> branch() = 0;

  // Called over and over while the host waits for the queue, whose work may need it; what it throws ends the wait.
  // Empty: the host waits idly.
  virtual void while_host_waits(std::function<void()> call) = 0;
};

}  // namespace quintet::device
