// One stage that holds the whole model, and microbatches of random tokens on it, so that a test can call the parts of a
// pass itself.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lib/comm/communicator.h"
#include "lib/config/config.h"
#include "lib/device/memory.h"
#include "lib/model/rope.h"
#include "lib/model/stage.h"
#include "lib/parallel/parameter_store.h"

namespace quintet::testing {

class StageRun {
 public:
  // A rank of a mesh without pipeline ranks. `types` are the precision's.
  StageRun(const config::Config& config, comm::Communicator& communicator, const device::ElementTypes& types);

  struct InFlight {
    device::Arena arena;
    std::vector<int32_t> tokens, targets, positions;
    std::vector<int64_t> rows;
    model::Microbatch batch;
    model::StageSaved saved;
    explicit InFlight(StageRun& run) : arena(run.device_, run.ledger_, device::Owner::activations) {}
  };
  // Microbatch `index`, its forward run.
  std::unique_ptr<InFlight> forward(int64_t index);
  model::Pass pass(InFlight& in_flight, model::Mode mode = model::Mode::train);
  const model::Stage& stage() const { return *stage_; }
  // A message's memory, [T', H].
  Tensor message();
  // Overwrites what the scratch arena and a message may still hold.
  void forget();

  void clear_gradients();
  std::vector<std::vector<std::byte>> gradients() const;  // by parameter that is trained

 private:
  struct Nobody : parallel::UnitObserver {
    void before(const parallel::Unit&, parallel::Use) override {}
    void after(const parallel::Unit&, parallel::Use) override {}
  };

  const config::Config& config_;
  std::unique_ptr<device::Device> owned_device_;
  device::Device& device_;
  device::MemoryLedger ledger_;
  device::ElementTypes types_;
  parallel::ParameterStore store_;
  model::RopeTable rope_;
  std::optional<model::Stage> stage_;
  parallel::TensorRegion tensor_;
  parallel::ContextRegion context_;
  std::optional<parallel::ExpertDispatch> dispatch_;
  device::Arena scratch_, logits_, messages_;
  Nobody nobody_;
};

}  // namespace quintet::testing
