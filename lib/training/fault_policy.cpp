#include "lib/training/fault_policy.h"

#include <cmath>

namespace quintet::training {
namespace {
constexpr size_t kWindow = 100;
constexpr size_t kArmedAfter = 20;
}  // namespace

bool FaultPolicy::is_spike(double norm) const {
  if (config_.spike_sigma <= 0 || applied_norms_.size() < kArmedAfter) return false;
  const auto count = static_cast<double>(applied_norms_.size());
  double mean = 0;
  for (const double applied : applied_norms_) mean += applied / count;
  double variance = 0;
  for (const double applied : applied_norms_) variance += (applied - mean) * (applied - mean) / count;
  return norm > mean + config_.spike_sigma * std::sqrt(variance);
}

FaultPolicy::Verdict FaultPolicy::judge(const pipeline::Gradients& gradients) {
  const bool finite = std::isfinite(gradients.loss) && std::isfinite(gradients.norm);
  if (finite && !is_spike(gradients.norm)) {
    applied_norms_.push_back(gradients.norm);
    if (applied_norms_.size() > kWindow) applied_norms_.pop_front();
    skipped_in_a_row_ = 0;
    return Verdict::apply;
  }
  if (!finite && config_.on_non_finite == config::OnNonFinite::stop) return Verdict::stop;
  ++skipped_in_a_row_;
  if (is_past_limit()) return Verdict::stop;
  return finite ? Verdict::skip_spike : Verdict::skip_non_finite;
}

}  // namespace quintet::training
