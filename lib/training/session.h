// What a config and a communicator make together: device, data and engine, and the steps that they take. The trainer,
// the benchmarks and the tests of layouts all run this one; metrics, console and dumps look at what a step returns.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "lib/comm/communicator.h"
#include "lib/config/config.h"
#include "lib/data/dataset.h"
#include "lib/device/device.h"
#include "lib/pipeline/engine.h"
#include "lib/training/fault_policy.h"
#include "lib/training/memory_report.h"

namespace quintet::training {

Mesh mesh_of(const config::Config& config);

// Opens what data.* names. Throws as data::open_split() does.
data::Split open_data(const config::Config& config);

// What a step did. All but `seconds` is equal on every rank.
struct StepResult {
  int64_t step = 0;  // from 1
  double learning_rate = 0;
  pipeline::Gradients gradients;
  FaultPolicy::Verdict verdict = FaultPolicy::Verdict::apply;
  double seconds = 0;     // of this rank, without `before_update`
  comm::Traffic traffic;  // the largest of all ranks, axis by axis
  MemoryPeaks memory;     // of the fullest rank
  int64_t signal = 0;     // by which any rank has been asked to stop; 0: none

  bool skipped() const { return verdict != FaultPolicy::Verdict::apply; }
};

class Session {
 public:
  // Tells the communicator its mesh and watchdog, and takes the memory of training. Every rank calls it with the same
  // config. Throws as open_data() and pipeline::Engine do, and Error(config) where memory will not do.
  Session(const config::Config& config, comm::Communicator& communicator);
  // On samples of the caller's.
  Session(const config::Config& config, comm::Communicator& communicator, data::Split data);

  const config::Config& config() const { return config_; }
  comm::Communicator& communicator() { return communicator_; }
  device::Device& device() { return *device_; }
  pipeline::Engine& engine() { return engine_; }
  const data::Split& data() const { return data_; }
  bool is_first_rank() const { return communicator_.placement().rank == 0; }

  // Trains step k: forward, backward, and the update unless the fault policy is against it. `before_update` is called
  // when the gradients are whole and the weights still those that made them; what it hands over and its time do not
  // count.
  StepResult step(int64_t k, const std::function<void()>& before_update = {});
  // Ends the run for a step with verdict `stop`: throws Error(numeric) that names the first tensor that is not finite.
  [[noreturn]] void stop_for(const StepResult& result);

  // Samples that evaluation reads; 0 without validation data.
  int64_t validation_samples() const;
  // Their mean loss, equal on every rank. Changes nothing of training.
  double evaluate();

 private:
  // Where this rank finds its microbatches in the data.
  data::BatchPlace place() const;
  void agree(StepResult& result);

  const config::Config& config_;
  comm::Communicator& communicator_;
  data::Split data_;
  std::unique_ptr<device::Device> device_;
  pipeline::Engine engine_;
  FaultPolicy policy_;
  MemoryPeaks memory_;  // of this rank
  FullestRank fullest_;
};

}  // namespace quintet::training
