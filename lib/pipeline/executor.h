// Runs a stage's list of actions, whatever the schedule: opens and closes microbatches, posts transfers and waits for
// them where a computation needs them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/comm/communicator.h"
#include "lib/config/config.h"
#include "lib/data/batch.h"
#include "lib/device/device.h"
#include "lib/device/memory.h"
#include "lib/model/stage.h"
#include "lib/parallel/context_region.h"
#include "lib/parallel/tensor_region.h"
#include "lib/pipeline/schedule.h"

namespace quintet::pipeline {

// Told of every intermediate tensor, with the action that made it.
using ActionObserver = std::function<void(const Action& action, const std::string& name, Tensor tensor)>;

// What a run of a list is for.
struct Execution {
  parallel::UnitObserver& units;          // told of every use of parameters
  model::Mode mode = model::Mode::train;  // or evaluate: nothing is kept after a forward
  double loss_scale = 0;                  // 1 / tokens that count in the global batch
  // The batch of a microbatch, on the host; asked for once, when the microbatch begins.
  std::function<data::Batch&(int64_t microbatch)> batch;
  ActionObserver observer;  // may be empty
};

class Executor {
 public:
  Executor(const config::Config& config, comm::Communicator& communicator, device::Device& device,
           device::MemoryLedger& ledger, const model::Stage& stage, const device::ElementTypes& types);

  // Adds what the microbatches' passes count, each once. Returns once all that was sent has been taken.
  void run(std::span<const Action> actions, const Execution& execution, model::Counts& counts);

  // Seconds that forwards and backwards have taken since the executor was made.
  double computed_seconds() const { return computed_seconds_; }
  // Who holds which positions.
  const parallel::ContextRegion& context() const { return context_; }

 private:
  // A message between stages. The handle dies before the memory.
  struct Parcel {
    device::Buffer memory;
    Tensor message;  // [T', H]
    comm::Handle transfer;
  };
  using ParcelPointer = std::unique_ptr<Parcel>;

  // A microbatch from its beginning to the end of its backward, or of its forward in an evaluation.
  struct InFlight {
    device::Arena arena;
    model::Microbatch batch;
    model::StageSaved saved;
    Tensor input;          // from the stage before
    comm::Handle arrival;  // of the input
    InFlight(device::Device& device, device::MemoryLedger& ledger) : arena(device, ledger, "activations") {}
  };

  InFlight& open(int64_t microbatch, const Execution& execution);
  // The microbatch's passes are done.
  void close(int64_t microbatch, model::Counts& counts);
  void forward(const Action& action, const Execution& execution, model::Counts& counts);
  void backward(const Action& action, const Execution& execution, model::Counts& counts);
  model::Pass pass(InFlight& in_flight, const Execution& execution, const model::Observer* observer);
  ParcelPointer take_parcel();
  void post_send(std::map<int64_t, ParcelPointer>& outbox, int64_t microbatch, int64_t to, const char* what);

  const config::Config& config_;
  comm::Communicator& communicator_;
  device::Device& device_;
  device::MemoryLedger& ledger_;
  const model::Stage& stage_;
  device::ElementTypes types_;
  comm::ProcessGroup& pipeline_;
  parallel::TensorRegion tensor_;
  parallel::ContextRegion context_;
  std::optional<parallel::ExpertDispatch> dispatch_;
  Shape message_shape_;  // [T', H]
  device::Arena scratch_;
  std::vector<std::unique_ptr<InFlight>> idle_;
  std::map<int64_t, std::unique_ptr<InFlight>> in_flight_;    // by microbatch
  std::map<int64_t, ParcelPointer> activations_, gradients_;  // by microbatch: made or arriving, not yet sent or used
  std::vector<ParcelPointer> sending_, free_;
  double computed_seconds_ = 0;
};

}  // namespace quintet::pipeline
