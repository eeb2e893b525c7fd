// A stream and its events, as objects.
#pragma once

#include <cuda_runtime.h>

#include <memory>

#include "kernels/cuda/launch.h"
#include "lib/device/queue.h"

namespace quintet::device::cuda {

using quintet::kernels::cuda::require_success;

// A stream of its own: it never waits for the default stream. Work that is left at its end is finished first.
class Stream {
 public:
  Stream() { require_success(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  operator cudaStream_t() const { return stream_; }  // NOLINT: it stands for its handle
  void synchronise() const { require_success(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event : public Fence {
 public:
  // cudaEventDefault: with the time that seconds_since needs.
  explicit Event(unsigned flags = cudaEventDisableTiming) { require_success(cudaEventCreateWithFlags(&event_, flags)); }
  ~Event() override { cudaEventDestroy(event_); }

  void record(cudaStream_t stream) { require_success(cudaEventRecord(event_, stream)); }
  // `stream` goes on once what was recorded last has happened.
  void hold(cudaStream_t stream) const { require_success(cudaStreamWaitEvent(stream, event_, 0)); }
  // Whether what was recorded last has happened.
  bool happened() const override {
    const cudaError_t status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) return false;
    require_success(status);
    return true;
  }
  // The host goes on once it has; at once if nothing was recorded.
  void synchronise() const { require_success(cudaEventSynchronize(event_)); }
  // Waits for both.
  double seconds_since(const Event& begin) const {
    synchronise();
    float milliseconds = 0;
    require_success(cudaEventElapsedTime(&milliseconds, begin.event_, event_));
    return static_cast<double>(milliseconds) / 1e3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// Behind all that the stream holds by now.
inline std::shared_ptr<const Fence> fence_behind(cudaStream_t stream) {
  auto event = std::make_shared<Event>();
  event->record(stream);
  return event;
}
// What the stream is told from now on happens after `fence`.
inline void hold_for(const Fence& fence, cudaStream_t stream) { dynamic_cast<const Event&>(fence).hold(stream); }

}  // namespace quintet::device::cuda
