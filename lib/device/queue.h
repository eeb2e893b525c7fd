// The order in which a device works off what it is told, for devices whose operations go on after the call that asked
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
};

// One a device and rank. What communication between ranks that share their devices' memory needs: nothing here waits
// for the device.
class WorkQueue {
 public:
  WorkQueue() = default;
  virtual ~WorkQueue() = default;
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // Whether this memory is the device's own: touched in the queue's order and never by the host.
  virtual bool holds(const void* memory) const = 0;

  // Both are queued; what they read may lie in another rank's device memory.
  virtual void copy_bytes(const void* from, void* to, int64_t bytes) = 0;
  // output[i] = ((pieces[0][i] + pieces[1][i]) + pieces[2][i]) + ..., bf16 in fp32 and rounded once. output may be one
  // of the pieces.
  virtual void sum_pieces(DType dtype, std::span<const std::byte* const> pieces, std::byte* output,
                          int64_t elements) = 0;

  // The place behind all that is queued by now. It may be waited for by other queues, as often as they like.
  virtual std::shared_ptr<const Fence> fence() = 0;
  // What is queued from now on happens after `fence`, another queue's or this one's.
  virtual void wait_for(const Fence& fence) = 0;

  // Called over and over while the host waits for the queue, whose work may need it; what it throws ends the wait.
  // Empty: the host waits idly.
  virtual void while_host_waits(std::function<void()> call) = 0;
};

}  // namespace quintet::device
