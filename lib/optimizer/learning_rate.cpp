#include "lib/optimizer/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "lib/base/error.h"

namespace quintet::optimizer {

double learning_rate(const config::Optimizer& optimizer, const config::Schedule& schedule, int64_t step) {
  const double peak = optimizer.learning_rate;
  const double floor = schedule.min_learning_rate;
  const int64_t warmup = schedule.warmup_steps;
  const int64_t end = schedule.decay_steps;
  if (step <= warmup) return peak * static_cast<double>(step) / static_cast<double>(warmup);
  const auto progress_since = [&](int64_t start) {
    return std::min(1.0, static_cast<double>(step - start) / static_cast<double>(end - start));
  };
  switch (schedule.decay) {
    case config::Decay::constant: return peak;
    case config::Decay::cosine:
      return floor + (peak - floor) * (1.0 + std::cos(std::numbers::pi * progress_since(warmup))) / 2.0;
    case config::Decay::linear: return peak + (floor - peak) * progress_since(warmup);
    case config::Decay::wsd: {
      const int64_t stable_end = end / 5 * 4 + end % 5 * 4 / 5;  // floor(4 * end / 5), without overflow
      return step <= stable_end ? peak : peak + (floor - peak) * progress_since(stable_end);
    }
  }
  QUINTET_CHECK(false, "unknown decay");
}

}  // namespace quintet::optimizer
