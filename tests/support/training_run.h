// Whole training runs inside a test: ranks are threads, nothing is written, everything is remembered.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lib/config/config.h"
#include "lib/mesh/mesh.h"

namespace quintet::testing {

using NamedValues = std::map<std::string, std::vector<double>>;

// What rank 0 saw; `comm_bytes` is the maximum over ranks.
struct Run {
  std::vector<double> losses, norms;  // of each step
  std::vector<int64_t> counted;       // tokens of each step
  std::vector<PerAxis<int64_t>> comm_bytes;
  NamedValues initial_weights, weights;  // before the first step, after the last
  NamedValues gradients;                 // of the first step, over the whole batch, before clipping
  double validation_loss = 0;            // after the last step
};

// The smallest model that has every part: GPT-2's shape, 4 layers of 64, 8 sequences of 32 a step, fp64, 5 steps.
// `overrides` are KEY=VALUE. All runs read the same text.
config::Config tiny_config(const std::vector<std::string>& overrides, int64_t ranks = 1);

// Trains on `ranks` thread ranks. A failure of any rank fails the test.
Run train(const std::vector<std::string>& overrides, int64_t ranks = 1);
// The same on a text of the caller's.
Run train_on(const std::string& text_file, const std::vector<std::string>& overrides, int64_t ranks = 1);

// DESIGN's rule: loss and norm within tol * |b| at every step, gradients within tol * max(max|b|, g) where
// g = grad_norm / sqrt(number of parameters). `tol` is 1e-10 in fp64 and 1e-5 in fp32.
void require_equal_training(const Run& run, const Run& reference, double tol);
// Every loss, norm, gradient and weight, bit by bit.
void require_same_bits(const Run& run, const Run& reference);

// Overrides that turn the tiny model into another family's shape.
std::vector<std::string> gpt2();
std::vector<std::string> llama();
std::vector<std::string> qwen3();
std::vector<std::string> with(std::vector<std::string> overrides, const std::vector<std::string>& more);

// The seed of sampled matrices: QUINTET_TEST_SEED (scripts/test takes it from the commit), else 0.
uint64_t test_seed();

}  // namespace quintet::testing
