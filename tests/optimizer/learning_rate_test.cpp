#include "lib/optimizer/learning_rate.h"

#include <cmath>
#include <limits>

#include <catch2/catch.hpp>

#include "lib/optimizer/clipping.h"

namespace quintet::optimizer {
namespace {

double rate(config::Decay decay, int64_t step) {
  config::Optimizer optimizer;
  optimizer.learning_rate = 1.0;
  return learning_rate(optimizer, {.warmup_steps = 10, .decay = decay, .decay_steps = 110, .min_learning_rate = 0.1},
                       step);
}

}  // namespace

TEST_CASE("every schedule warms up linearly from the first step on", "[quick][optimizer]") {
  for (const config::Decay decay :
       {config::Decay::constant, config::Decay::cosine, config::Decay::linear, config::Decay::wsd}) {
    REQUIRE(rate(decay, 1) == Approx(0.1));
    REQUIRE(rate(decay, 5) == Approx(0.5));
    REQUIRE(rate(decay, 10) == Approx(1.0));
  }
}

TEST_CASE("constant stays, cosine and linear reach the minimum and keep it", "[quick][optimizer]") {
  REQUIRE(rate(config::Decay::constant, 1000) == 1.0);
  for (const config::Decay decay : {config::Decay::cosine, config::Decay::linear}) {
    REQUIRE(rate(decay, 60) == Approx(0.55));
    REQUIRE(rate(decay, 110) == Approx(0.1));
    REQUIRE(rate(decay, 500) == Approx(0.1));
  }
  REQUIRE(rate(config::Decay::cosine, 35) == Approx(0.1 + 0.9 * (1 + std::cos(M_PI / 4)) / 2));
}

TEST_CASE("wsd is constant for four fifths of decay_steps, then linear", "[quick][optimizer]") {
  REQUIRE(rate(config::Decay::wsd, 88) == 1.0);
  REQUIRE(rate(config::Decay::wsd, 99) == Approx(0.55));
  REQUIRE(rate(config::Decay::wsd, 110) == Approx(0.1));
}

TEST_CASE("without warm-up the first step decays already", "[quick][optimizer]") {
  config::Optimizer optimizer;
  optimizer.learning_rate = 1.0;
  REQUIRE(learning_rate(optimizer, {.decay = config::Decay::linear, .decay_steps = 4}, 1) == Approx(0.75));
}

TEST_CASE("clipping shrinks large gradients only, and is off at 0 and infinity", "[quick][optimizer]") {
  config::Optimizer optimizer;
  optimizer.clip_grad_norm = 1.0;
  REQUIRE(clip_scale(optimizer, 0.5) == 1.0);
  REQUIRE(clip_scale(optimizer, 4.0) == 1.0 / (4.0 + 1e-6));
  for (const double off : {0.0, std::numeric_limits<double>::infinity()}) {
    optimizer.clip_grad_norm = off;
    REQUIRE(clip_scale(optimizer, 1e9) == 1.0);
  }
}

}  // namespace quintet::optimizer
