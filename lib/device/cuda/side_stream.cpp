#include "lib/device/cuda/side_stream.h"

#include <vector>

#include "kernels/cuda/fold.h"
#include "lib/device/cuda/cuda_arguments.h"
#include "lib/device/cuda/stream.h"

namespace quintet::device::cuda {
namespace {

class SideStream : public SideQueue {
 public:
  void copy_bytes(const void* from, void* to, int64_t bytes) override {
    require_success(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream_));
  }

  void sum_pieces(DType dtype, std::span<const std::byte* const> pieces, std::byte* output, int64_t elements) override {
    visit_element_type(dtype, [&]<typename T>() {
      std::vector<const T*> typed;
      for (const std::byte* piece : pieces) typed.push_back(reinterpret_cast<const T*>(piece));
      kernels::fold<T>(elements, typed, reinterpret_cast<T*>(output), stream_);
    });
  }

  std::shared_ptr<const Fence> fence() override { return fence_behind(stream_); }
  void wait_for(const Fence& fence) override { hold_for(fence, stream_); }

 private:
  Stream stream_;
};

}  // namespace

std::unique_ptr<SideQueue> make_side_stream() { return std::make_unique<SideStream>(); }

}  // namespace quintet::device::cuda
