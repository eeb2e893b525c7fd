// ZeRO 0 and 1: gradients of all units are kept whole. A bucket is reduced when the last microbatch has completed all
// of its parameters.
#include <vector>

#include "lib/optimizer/gradient_policy.h"

namespace quintet::optimizer {
namespace {

class WholeGradients final : public GradientPolicy {
 public:
  WholeGradients(const GradientContext& context, bool whole_sums) : context_(context), whole_sums_(whole_sums) {}

  void begin_step(int64_t microbatches) override {
    context_.device.fill(context_.store.all_gradients(), 0);
    open_.assign(context_.store.units().size(), microbatches);
    missing_.clear();
    for (const parallel::Bucket& bucket : context_.store.buckets()) missing_.push_back(bucket.parameters.size());
    reductions_.clear();
  }

  void before(const parallel::Unit& /*unit*/) override {}
  void discard(const parallel::Unit& /*unit*/) override {}

  void complete(const parallel::Unit& unit) override {
    QUINTET_CHECK(open_[unit.index] > 0, "{} has more backward passes than microbatches", unit.name);
    if (--open_[unit.index] > 0) return;
    for (auto parameter = unit.parameters.rbegin(); parameter != unit.parameters.rend(); ++parameter) {
      if (!(*parameter)->spec().trained) continue;
      const auto bucket = static_cast<size_t>((*parameter)->bucket());
      if (--missing_[bucket] == 0 && context_.overlap) start_reduction(bucket);
    }
  }

  void finish() override {
    for (size_t i = 0; i < missing_.size(); ++i) {
      QUINTET_CHECK(missing_[i] == 0, "{} gradients of bucket {} are missing", missing_[i], i);
      if (context_.overlap) continue;
      start_reduction(i);
      reductions_.back().wait();
    }
    for (comm::Handle& reduction : reductions_) reduction.wait();
  }

 private:
  void start_reduction(size_t index) {
    const parallel::Bucket& bucket = context_.store.buckets()[index];
    const Tensor gradients = context_.store.gradients(bucket.all);
    const std::string what = fmt::format("gradients of bucket {}", index);
    comm::ProcessGroup& group = data_group(context_.communicator, bucket.data_axes);
    if (whole_sums_) {
      reductions_.push_back(group.all_reduce(gradients, comm::Reduction::sum, what));
      return;
    }
    reductions_.push_back(group.reduce_scatter(gradients, group.even_counts(bucket.all.count),
                                               context_.store.gradients(bucket.own), what));
  }

  GradientContext context_;
  bool whole_sums_;
  std::vector<int64_t> open_;    // microbatches that each unit still lacks
  std::vector<size_t> missing_;  // parameters of each bucket that are not final
  std::vector<comm::Handle> reductions_;
};

}  // namespace

std::unique_ptr<GradientPolicy> make_whole_gradients(const GradientContext& context, bool whole_sums) {
  return std::make_unique<WholeGradients>(context, whole_sums);
}

}  // namespace quintet::optimizer
