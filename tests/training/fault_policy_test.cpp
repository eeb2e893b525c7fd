#include "lib/training/fault_policy.h"

#include <limits>

#include <catch2/catch.hpp>

namespace quintet::training {
namespace {

using Verdict = FaultPolicy::Verdict;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

pipeline::Gradients step(double loss, double norm) { return {.loss = loss, .norm = norm, .counted = 1}; }

}  // namespace

TEST_CASE("a loss or norm that is not finite stops the run by default", "[quick][faults]") {
  FaultPolicy policy(config::Fault{});
  REQUIRE(policy.judge(step(1, 1)) == Verdict::apply);
  REQUIRE(policy.judge(step(kNan, 1)) == Verdict::stop);
  REQUIRE(policy.judge(step(1, kInfinity)) == Verdict::stop);
}

TEST_CASE("skipping goes on until too many steps in a row were bad", "[quick][faults]") {
  FaultPolicy policy({.on_non_finite = config::OnNonFinite::skip, .max_skipped_steps = 2});
  REQUIRE(policy.judge(step(kNan, kNan)) == Verdict::skip_non_finite);
  REQUIRE(policy.judge(step(kNan, kNan)) == Verdict::skip_non_finite);
  REQUIRE(policy.judge(step(1, 1)) == Verdict::apply);
  REQUIRE(policy.judge(step(kNan, kNan)) == Verdict::skip_non_finite);
  REQUIRE(policy.judge(step(kNan, kNan)) == Verdict::skip_non_finite);
  REQUIRE(policy.judge(step(kNan, kNan)) == Verdict::stop);
  REQUIRE(policy.is_past_limit());
}

TEST_CASE("a stop at once is not told as too many skipped steps", "[quick][faults]") {
  FaultPolicy policy({.max_skipped_steps = 10, .spike_sigma = 3});
  for (int i = 0; i < 20; ++i) REQUIRE(policy.judge(step(1, 1)) == Verdict::apply);
  REQUIRE(policy.judge(step(1, 100)) == Verdict::skip_spike);
  REQUIRE(policy.judge(step(kNan, 1)) == Verdict::stop);
  REQUIRE_FALSE(policy.is_past_limit());
}

TEST_CASE("a leap of the norm is skipped once twenty steps were applied", "[quick][faults]") {
  FaultPolicy policy({.max_skipped_steps = 10, .spike_sigma = 3});
  for (int i = 0; i < 19; ++i) REQUIRE(policy.judge(step(1, 1 + 0.01 * (i % 2))) == Verdict::apply);
  FaultPolicy unarmed = policy;
  REQUIRE(unarmed.judge(step(1, 100)) == Verdict::apply);
  REQUIRE(policy.judge(step(1, 1)) == Verdict::apply);
  REQUIRE(policy.judge(step(1, 100)) == Verdict::skip_spike);
  REQUIRE(policy.judge(step(1, 1.01)) == Verdict::apply);
}

}  // namespace quintet::training
