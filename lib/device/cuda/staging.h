// Pinned memory through which a stream and the host's ordinary memory exchange bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "lib/device/cuda/stream.h"

namespace quintet::device::cuda {

class Staging {
 public:
  explicit Staging(cudaStream_t stream);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Queues the copy; `from` has been read when the call returns.
  void upload(const void* from, void* to, int64_t bytes);
  // Waits for all that is queued; `to` has been written when the call returns.
  void download(const void* from, void* to, int64_t bytes);
  // As WorkQueue::while_host_waits.
  void while_host_waits(std::function<void()> call) { meanwhile_ = std::move(call); }

 private:
  void wait_for(const Event& event) const;

  static constexpr int64_t kHalfBytes = int64_t{1} << 20;
  // While the device takes one half, the host fills the other.
  struct Half {
    std::byte* memory = nullptr;
    Event taken;
  };
  cudaStream_t stream_;
  std::array<Half, 2> halves_;
  size_t next_ = 0;
  Event downloaded_;
  std::function<void()> meanwhile_;
};

}  // namespace quintet::device::cuda
