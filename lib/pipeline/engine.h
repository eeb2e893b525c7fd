// A rank's working parts (device, parameters, its stages of the model, optimizer) and the step that they make together:
// forward and backward by a list of actions, reduction, clipping, update.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/exact_sum.h"
#include "lib/comm/communicator.h"
#include "lib/config/config.h"
#include "lib/data/batch.h"
#include "lib/device/device.h"
#include "lib/device/memory.h"
#include "lib/model/rope.h"
#include "lib/model/stage.h"
#include "lib/optimizer/zero.h"
#include "lib/parallel/parameter_store.h"
#include "lib/pipeline/executor.h"
#include "lib/pipeline/model_parameters.h"
#include "lib/pipeline/rank_device.h"

namespace quintet::pipeline {

// Fills a batch with what this rank reads for microbatch j of the step.
using LoadMicrobatch = std::function<void(int64_t microbatch, data::Batch& batch)>;

// What a step found before its update, equal on every rank.
struct Gradients {
  double loss = 0;               // mean over the tokens that count, natural log
  double norm = 0;               // of the whole gradient, before clipping
  int64_t counted = 0;           // tokens of the global batch that count
  model::RoutingTotals routing;  // of an MoE model, over all ranks
};

class Engine {
 public:
  // Takes the memory for parameters, gradients and optimizer state, and draws the initial weights. Throws Error(config)
  // when the ranks that share a memory need more in the first step than is available;
  // without `available` nobody asks. On a null device nothing is drawn.
  Engine(const config::Config& config, comm::Communicator& communicator, device::Device& device,
         const std::optional<AvailableMemory>& available = {});

  device::MemoryLedger& ledger() { return ledger_; }
  parallel::ParameterStore& parameters() { return store_; }
  optimizer::ZeroOptimizer& optimizer() { return *optimizer_; }
  device::Device& device() { return device_; }
  comm::Communicator& communicator() { return communicator_; }
  const Executor& executor() const { return *executor_; }
  // All parameters, over all stages.
  const std::vector<ModelParameter>& model_parameters() const { return model_parameters_; }
  int64_t rank() const { return communicator_.placement().rank; }
  int64_t data_rank() const;
  int64_t data_ranks() const;
  // The positions that this rank reads of each sequence.
  const std::vector<data::Chunk>& chunks() const { return executor_->context().chunks(); }
  // What this rank read for the last step, by microbatch.
  const std::vector<data::Batch>& batches() const { return batches_; }
  // Microbatches per rank and training step.
  int64_t microbatches() const;

  // Forward and backward of the step's microbatches; gradients are summed over them and over all ranks.
  Gradients forward_backward(const LoadMicrobatch& load);
  // Clips and updates with what forward_backward left.
  void update(double learning_rate, const Gradients& gradients);

  // Mean loss over `microbatches` of this rank and those of the others; nothing of the training run changes.
  double evaluate(int64_t microbatches, const LoadMicrobatch& load);

  // Repeats the last step's passes with every tensor looked at, and names the first that is not finite: weights first,
  // then activations, gradients of activations and of parameters in the order of the model's computation, lowest rank
  // first. Every rank calls it and gets the same words. Leaves the gradients unusable.
  std::string first_non_finite();

 private:
  int64_t pipeline_rank() const { return store_.coordinate()[Axis::pp]; }
  // Forward and backward of the microbatches in batches_.
  model::Counts run_microbatches(const ActionObserver& observer);

  const config::Config& config_;
  comm::Communicator& communicator_;
  device::Device& device_;
  comm::DeviceScope device_scope_;
  device::MemoryLedger ledger_;
  device::ElementTypes types_;
  model::RopeTable rope_;
  parallel::ParameterStore store_;
  StagePlacement placement_;
  std::vector<Action> actions_;  // of this rank in a step
  int64_t messages_under_way_;
  std::vector<ModelParameter> model_parameters_;
  std::deque<model::Stage> stages_;  // in ascending order
  std::optional<optimizer::ZeroOptimizer> optimizer_;
  std::optional<Executor> executor_;
  std::vector<data::Batch> batches_;  // of the step, on the host
  double loss_scale_ = 0;
};

}  // namespace quintet::pipeline
