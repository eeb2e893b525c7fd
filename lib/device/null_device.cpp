#include "lib/device/null_device.h"

#include <cstring>
#include <functional>
#include <utility>

#include "lib/base/integers.h"

namespace quintet::device {
namespace {

// Beyond what a process can map.
constexpr uintptr_t kFirstAddress = uintptr_t{1} << 60;
constexpr int64_t kAlignment = 256;

class NullFence : public Fence {
 public:
  bool happened() const override { return true; }
};

class NullSideQueue : public SideQueue {
 public:
  void copy_bytes(const void*, void*, int64_t) override {}
  void sum_pieces(DType, std::span<const std::byte* const>, std::byte*, int64_t) override {}
  std::shared_ptr<const Fence> fence() override { return std::make_shared<NullFence>(); }
  void wait_for(const Fence&) override {}
};

class NullDevice : public Device, public WorkQueue {
 public:
  explicit NullDevice(int64_t bytes) : free_(bytes) {}
  std::string description() const override { return "no device"; }
  int threads() const override { return 1; }
  WorkQueue* queue() override { return this; }
  bool computes() const override { return false; }

  void* allocate(int64_t bytes) override {
    if (bytes > free_) return nullptr;
    free_ -= bytes;
    return reinterpret_cast<void*>(  // NOLINT(performance-no-int-to-ptr): nobody follows it
        std::exchange(next_, next_ + static_cast<uintptr_t>(round_up(bytes, kAlignment))));
  }
  void release(void*, int64_t bytes) override { free_ += bytes; }

  void fill(Tensor, double) override {}
  void copy(Tensor from, Tensor to) override {
    if (to.data() == nullptr || holds(to.data())) return;
    std::memset(to.data(), 0, static_cast<size_t>(to.bytes()));
    if (from.data() != choices_) return;
    int32_t next = 0;
    for (int32_t& choice : to.span<int32_t>()) choice = next++ % experts_;
  }
  void scale(Tensor, double) override {}
  void transpose_rows(Tensor, Tensor) override {}
  void add_dropout(Tensor, Tensor, const Dropout&, Tensor) override {}
  void embedding_forward(const EmbeddingForward&) override {}
  void embedding_backward(const EmbeddingBackward&) override {}
  void add_norm_forward(const AddNormForward&) override {}
  void add_norm_backward_input(const AddNormBackwardInput&) override {}
  void add_norm_backward_weight(const AddNormBackwardWeight&) override {}
  void rope_norm_backward_input(const RopeNormBackwardInput&) override {}
  void rope_norm_backward_weight(const RopeNormBackwardWeight&) override {}
  void activation_forward(const ActivationForward&) override {}
  void linear_forward(const LinearForward&) override {}
  void linear_backward_input(const LinearBackwardInput&) override {}
  void linear_backward_weight(const LinearBackwardWeight&) override {}
  void swiglu_forward(const SwigluForward&) override {}
  void swiglu_backward(const SwigluBackward&) override {}
  void rope_norm_forward(const RopeNormForward&) override {}
  void attention_forward(const AttentionForward&) override {}
  void attention_backward(const AttentionBackward&) override {}
  void attention_merge(const AttentionMerge&) override {}
  void cross_entropy_statistics(const CrossEntropyStatistics&) override {}
  void cross_entropy_merge(const CrossEntropyMerge&) override {}
  void cross_entropy_gradient(const CrossEntropyGradient&) override {}
  void cross_entropy_sum(const CrossEntropySum&, ExactSum&) override {}
  void router_forward(const RouterForward& op) override {
    choices_ = op.experts.data();
    experts_ = narrow<int32_t>(op.probabilities.size(1));
  }
  void router_backward(const RouterBackward&) override {}
  void router_losses(const RouterLosses&, ExactSum&, ExactSum&) override {}
  void gather_rows(const GatherRows&) override {}
  void combine_rows(const CombineRows&) override {}
  void combine_rows_backward(const CombineRowsBackward&) override {}
  void adamw(std::span<const AdamwSpan>, const AdamwStep&) override {}
  void squared_norm(std::span<const Tensor>, ExactSum&) override {}
  bool all_finite(Tensor) override { return true; }

  bool holds(const void* memory) const override { return reinterpret_cast<uintptr_t>(memory) >= kFirstAddress; }
  std::shared_ptr<const Fence> fence() override { return std::make_shared<NullFence>(); }
  void wait_for(const Fence&) override {}
  std::unique_ptr<SideQueue> branch() override { return std::make_unique<NullSideQueue>(); }
  void while_host_waits(std::function<void()>) override {}

 private:
  int64_t free_;
  uintptr_t next_ = kFirstAddress;
  const void* choices_ = nullptr;  // of the router that came last
  int32_t experts_ = 1;
};

}  // namespace

std::unique_ptr<Device> make_null_device(int64_t bytes) { return std::make_unique<NullDevice>(bytes); }

}  // namespace quintet::device
