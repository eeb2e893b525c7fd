#include "lib/device/cuda/staging.h"

#include <algorithm>
#include <cstring>
#include <thread>

namespace quintet::device::cuda {

Staging::Staging(cudaStream_t stream) : stream_(stream) {
  void* memory = nullptr;
  require_success(cudaMallocHost(&memory, static_cast<size_t>(2 * kHalfBytes)));
  halves_[0].memory = static_cast<std::byte*>(memory);
  halves_[1].memory = halves_[0].memory + kHalfBytes;
}

Staging::~Staging() { cudaFreeHost(halves_[0].memory); }

void Staging::wait_for(const Event& event) const {
  if (!meanwhile_) return event.synchronise();
  while (!event.happened()) {
    meanwhile_();
    std::this_thread::yield();
  }
}

void Staging::upload(const void* from, void* to, int64_t bytes) {
  for (int64_t done = 0; done < bytes; done += kHalfBytes) {
    const auto count = static_cast<size_t>(std::min(bytes - done, kHalfBytes));
    Half& half = halves_[next_];
    next_ = 1 - next_;
    wait_for(half.taken);
    std::memcpy(half.memory, static_cast<const std::byte*>(from) + done, count);
    require_success(
        cudaMemcpyAsync(static_cast<std::byte*>(to) + done, half.memory, count, cudaMemcpyHostToDevice, stream_));
    half.taken.record(stream_);
  }
}

void Staging::download(const void* from, void* to, int64_t bytes) {
  // The stream's order keeps these copies behind uploads that still read a half.
  for (int64_t done = 0; done < bytes; done += 2 * kHalfBytes) {
    const auto count = static_cast<size_t>(std::min(bytes - done, 2 * kHalfBytes));
    std::byte* both = halves_[0].memory;
    require_success(
        cudaMemcpyAsync(both, static_cast<const std::byte*>(from) + done, count, cudaMemcpyDeviceToHost, stream_));
    downloaded_.record(stream_);
    wait_for(downloaded_);
    std::memcpy(static_cast<std::byte*>(to) + done, both, count);
  }
}

}  // namespace quintet::device::cuda
