// Whole training runs inside a test: ranks are threads, nothing is written, everything is remembered.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lib/config/config.h"
#include "lib/device/memory.h"
#include "lib/mesh/mesh.h"
#include "lib/model/routing.h"

namespace quintet::testing {

using NamedValues = std::map<std::string, std::vector<double>>;

// What one rank saw.
struct RankView {
  Coordinate coordinate;
  std::vector<int64_t> ordinals;  // of the samples that it read for training, in the order read
  int64_t peak_bytes = 0;         // of memory in use
  device::BytesByOwner peak_by_owner;
  std::vector<int64_t> held_bytes;  // taken from the device, after each step
  // Elements of its parameters that after the last step are not the bits of the model's, padding that is not zero
  // included, and elements of experts that lie on another rank along ep than they should. 0 where all copies of a
  // parameter are the same.
  int64_t strays = 0;
};

// What the routers of a step did.
struct StepRouting {
  model::RoutingFigures figures;
  std::vector<int64_t> loads;  // [MoE layers, E]
  int64_t dropped = 0;
  uint64_t digest = 0;
};

// What rank 0 saw, and a few things of each rank; traffic is the maximum over ranks, axis by axis.
struct Run {
  std::vector<double> losses, norms;  // of each step
  std::vector<int64_t> counted;       // tokens of each step
  std::vector<StepRouting> routing;   // of each step of an MoE model
  std::vector<PerAxis<int64_t>> comm_bytes, operations;
  NamedValues initial_weights, weights;  // before the first step, after the last
  NamedValues gradients;                 // of the first step, over the whole batch, before clipping
  double validation_loss = 0;            // after the last step
  std::vector<RankView> ranks;           // by rank
};

// The sizes of a mesh's axes.
struct Sizes {
  int64_t dp = 1, tp = 1, pp = 1, ep = 1, cp = 1;
  int64_t ranks() const { return dp * tp * pp * ep * cp; }
  std::vector<std::string> overrides() const;
  std::string text() const;  // "dp 2, tp 1, pp 4, ep 1, cp 1"
};

// The smallest model that has every part: GPT-2's shape, 4 layers of 64, 8 sequences of 32 a step, fp64, 5 steps.
// `overrides` are KEY=VALUE. All runs read the same text.
config::Config tiny_config(const std::vector<std::string>& overrides, int64_t ranks = 1);

// Trains on `ranks` thread ranks. A failure of any rank fails the test.
Run train(const std::vector<std::string>& overrides, int64_t ranks = 1);
Run train(const std::vector<std::string>& overrides, const Sizes& sizes);
// The same on a text of the caller's.
Run train_on(const std::string& text_file, const std::vector<std::string>& overrides, int64_t ranks = 1);

// One-rank runs to compare with, each trained once.
class References {
 public:
  // Of what `overrides` ask for, but for mesh, parallelism and microbatches.
  const Run& of(const std::vector<std::string>& overrides);

 private:
  std::map<std::vector<std::string>, Run> runs_;
};

// DESIGN's rule: loss and norm within tol * |b| at every step, gradients within tol * max(max|b|, g) where
// g = grad_norm / sqrt(number of parameters). `tol` is 1e-10 in fp64 and 1e-5 in fp32. No rank of either may have
// strays. Routers do the same at every step; in fp32 all this holds up to the first step whose digest differs.
void require_equal_training(const Run& run, const Run& reference, double tol);
// Steps before the first one in which a token goes elsewhere; all of them without experts.
size_t steps_routed_alike(const Run& run, const Run& reference);
// DESIGN's rule for bf16, by tensor of the gradient: twice the distance between bf16 (`one`) and fp32 (`exact`) on one
// rank of the CPU bounds what layouts and devices change; half a rounding is forgiven where that distance happens to be
// small.
void require_within_roundings(const Run& run, const Run& one, const Run& exact);
// Every loss, norm, gradient and weight, and what routers did, bit by bit.
void require_same_bits(const Run& run, const Run& reference);

// Overrides that turn the tiny model into another family's shape.
std::vector<std::string> gpt2();
std::vector<std::string> llama();
std::vector<std::string> qwen3();
std::vector<std::string> with(std::vector<std::string> overrides, const std::vector<std::string>& more);

// The seed of sampled matrices: QUINTET_TEST_SEED (scripts/test takes it from the commit), else 0.
uint64_t test_seed();

}  // namespace quintet::testing
