// Memory of a CUDA device for tests, and a stream to use it from. On a device or emulated.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

#include "kernels/cuda/launch.h"

namespace quintet::testing {

class Stream {
 public:
  Stream() { kernels::cuda::require_success(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  operator cudaStream_t() const { return stream_; }  // NOLINT: it stands for its handle
  void synchronise() const { kernels::cuda::require_success(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

// Elements of device memory, the first of them `offset` elements behind a 256-byte boundary.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(int64_t size, int64_t offset = 0) : size_(size), offset_(offset) {
    kernels::cuda::require_success(cudaMalloc(&memory_, static_cast<size_t>(size + offset) * sizeof(T)));
  }
  DeviceArray(const std::vector<T>& values, int64_t offset = 0)
      : DeviceArray(static_cast<int64_t>(values.size()), offset) {
    copy(data(), values.data(), cudaMemcpyHostToDevice);
  }
  ~DeviceArray() { cudaFree(memory_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return memory_ + offset_; }
  operator T*() const { return data(); }  // NOLINT: an array stands for its elements
  int64_t size() const { return size_; }

  // What the device has written, once all of `stream` is done.
  std::vector<T> read(cudaStream_t stream) const {
    kernels::cuda::require_success(cudaStreamSynchronize(stream));
    std::vector<T> values(static_cast<size_t>(size_));
    copy(values.data(), data(), cudaMemcpyDeviceToHost);
    return values;
  }

 private:
  void copy(T* to, const T* from, cudaMemcpyKind kind) const {
    const Stream stream;
    kernels::cuda::require_success(cudaMemcpyAsync(to, from, static_cast<size_t>(size_) * sizeof(T), kind, stream));
    stream.synchronise();
  }

  T* memory_ = nullptr;
  int64_t size_, offset_;
};

}  // namespace quintet::testing
