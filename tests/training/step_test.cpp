// What one step must and must not do, whatever the layout.
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/support/training_run.h"

namespace quintet::testing {

TEST_CASE("weights of zero give the loss of a uniform guess", "[quick][step]") {
  const Run run = train({"model.init_std=0", "train.steps=1"});
  REQUIRE(run.losses.front() == Approx(std::log(256.0)).epsilon(1e-14));
}

TEST_CASE("training lowers the loss", "[quick][step]") {
  const Run run = train({"train.steps=20", "precision.compute=fp32"}, 2);
  REQUIRE(run.losses.back() < 0.8 * run.losses.front());
}

TEST_CASE("the gradient does not depend on how the batch is cut into microbatches", "[quick][step]") {
  const Run whole = train({"train.micro_batch_size=8"});
  for (const char* size : {"train.micro_batch_size=2", "train.micro_batch_size=1"})
    require_equal_training(train({size}), whole, 1e-10);
}

TEST_CASE("every token of the global batch counts once on any number of ranks", "[quick][step]") {
  for (const int64_t ranks : {1, 2, 8})
    for (const int64_t counted : train({"train.steps=2"}, ranks).counted) REQUIRE(counted == 8 * 32);
}

TEST_CASE("clipping scales the update and not the logged norm", "[quick][step]") {
  const std::vector<std::string> base = {"train.steps=2", "optimizer.epsilon=1.0"};  // so that Adam sees the scale
  const Run free = train(with(base, {"optimizer.clip_grad_norm=0"}));
  const Run infinite = train(with(base, {"optimizer.clip_grad_norm=.inf"}));
  const Run clipped = train(with(base, {"optimizer.clip_grad_norm=0.01"}));
  require_same_bits(infinite, free);
  REQUIRE(clipped.norms.front() == free.norms.front());
  REQUIRE(clipped.weights != free.weights);
  REQUIRE(free.weights != free.initial_weights);
  require_equal_training(train(with(base, {"optimizer.clip_grad_norm=0.01"}), 4), clipped, 1e-10);
}

TEST_CASE("a gradient of zero gives finite weights", "[quick][step]") {
  // Without weights nothing but the final norm's bias gets a gradient; the rest is exactly zero.
  const Run run = train({"model.init_std=0", "train.steps=2", "optimizer.clip_grad_norm=1.0"});
  for (const auto& [name, values] : run.weights)
    for (const double value : values) REQUIRE(std::isfinite(value));
}

TEST_CASE("evaluation drops nothing", "[quick][step]") {
  const std::vector<std::string> base = {"train.steps=1", "optimizer.learning_rate=0"};
  REQUIRE(train(with(base, {"model.dropout=0.3"})).validation_loss == train(base).validation_loss);
}

TEST_CASE("weight decay touches matrices and tables alone", "[quick][step]") {
  const std::vector<std::string> base = {"train.steps=1", "optimizer.learning_rate=0.5"};
  const Run decayed = train(with(base, {"optimizer.weight_decay=0.1"}));
  const Run plain = train(with(base, {"optimizer.weight_decay=0"}));
  for (const auto& [name, values] : decayed.weights) {
    INFO(name);
    const bool is_vector = name.find("norm") != std::string::npos || name.find("bias") != std::string::npos;
    REQUIRE((values == plain.weights.at(name)) == is_vector);
  }
}

}  // namespace quintet::testing
