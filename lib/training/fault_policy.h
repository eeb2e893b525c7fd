// Whether a step's gradients may be applied: not when something is not finite, nor when the norm leaps out of its past.
#pragma once

#include <cstdint>
#include <deque>

#include "lib/config/config.h"
#include "lib/pipeline/engine.h"

namespace quintet::training {

class FaultPolicy {
 public:
  enum class Verdict { apply, skip_non_finite, skip_spike, stop };

  explicit FaultPolicy(const config::Fault& config) : config_(config) {}

  // Judges the next step; equal on every rank, since loss and norm are.
  Verdict judge(const pipeline::Gradients& gradients);
  // More steps in a row were bad than may be skipped.
  bool is_past_limit() const { return skipped_in_a_row_ > config_.max_skipped_steps; }

 private:
  bool is_spike(double norm) const;

  config::Fault config_;
  std::deque<double> applied_norms_;  // of the last applied steps
  int64_t skipped_in_a_row_ = 0;
};

}  // namespace quintet::training
