#include "lib/data/sample_order.h"

#include "lib/base/error.h"
#include "lib/data/permutation.h"

namespace quintet::data {

SampleOrder::SampleOrder(const OrderOptions& options)
    : windows_(options.windows), seed_(options.seed), shuffle_(options.shuffle) {
  QUINTET_CHECK(!windows_.empty());
  for (const int64_t windows : windows_) QUINTET_CHECK(windows >= 1, "a source of {} windows", windows);
  if (options.weights.empty()) {
    QUINTET_CHECK(windows_.size() == 1, "{} sources without weights", windows_.size());
    return;
  }
  QUINTET_CHECK(options.weights.size() == windows_.size());
  blend_.emplace(options.key, options.weights);
}

SampleOrder::Place SampleOrder::at(int64_t ordinal) {
  QUINTET_CHECK(ordinal >= 0, "ordinal {}", ordinal);
  const Blend::Draw draw = blend_ ? blend_->at(ordinal) : Blend::Draw{.entry = 0, .ordinal = ordinal};
  const int64_t windows = windows_[static_cast<size_t>(draw.entry)];
  const int64_t epoch = draw.ordinal / windows;
  const int64_t place = draw.ordinal % windows;
  return {.source = draw.entry, .window = shuffle_ ? Permutation(windows, seed_, epoch, draw.entry)(place) : place};
}

std::vector<double> SampleOrder::shares() const { return blend_ ? blend_->shares() : std::vector<double>{1.0}; }

}  // namespace quintet::data
