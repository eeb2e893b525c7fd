// Runs a rank's list of actions, whatever the schedule: opens and closes microbatches on its stages, posts transfers
// and waits for them where a computation needs them, and hands over between neighbouring stages of the rank.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/comm/communicator.h"
#include "lib/config/config.h"
#include "lib/data/batch.h"
#include "lib/device/device.h"
#include "lib/device/memory.h"
#include "lib/model/stage.h"
#include "lib/parallel/context_region.h"
#include "lib/parallel/tensor_region.h"
#include "lib/pipeline/action.h"

namespace quintet::pipeline {

// Told of every intermediate tensor, with the action that made it.
using ActionObserver = std::function<void(const Action& action, const std::string& name, Tensor tensor)>;

// What a run of a list is for.
struct Execution {
  parallel::UnitObserver& units;          // told of every use of parameters
  model::Mode mode = model::Mode::train;  // or evaluate: nothing is kept after a forward
  double loss_scale = 0;                  // 1 / tokens that count in the global batch
  // The batch of a microbatch, on the host; asked for once a stage, when the microbatch begins there.
  std::function<data::Batch&(int64_t microbatch)> batch;
  ActionObserver observer;         // may be empty
  int64_t messages_under_way = 2;  // that there is memory for; see messages_under_way(Plan)
};

// The most bytes that a rank's arenas have in use at once.
struct ArenaSizes {
  std::map<int64_t, int64_t> in_flight;  // of a microbatch on a stage, by stage
  int64_t scratch = 0, logits = 0;
};

class Executor {
 public:
  // `expected`: what a step needs, as arena_sizes() of a dry run found it; arenas then never grow.
  Executor(const config::Config& config, comm::Communicator& communicator, device::Device& device,
           device::MemoryLedger& ledger, const StagePlacement& placement, const std::deque<model::Stage>& stages,
           const device::ElementTypes& types, const ArenaSizes& expected = {});

  // Adds what the microbatches' passes count, each once. Returns once all that was sent has been taken.
  void run(std::span<const Action> actions, const Execution& execution, model::Counts& counts);

  // Seconds that computations have taken since the executor was made, by kind and stage.
  using ComputedSeconds = std::map<std::pair<Action::Kind, int64_t>, double>;
  const ComputedSeconds& computed_seconds() const { return computed_seconds_; }
  // What its arenas have needed so far, when no microbatch is under way.
  ArenaSizes arena_sizes() const;
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

  // What is under way is told apart by stage and microbatch.
  using Key = std::pair<int64_t, int64_t>;
  static Key key_of(const Action& action) { return {action.stage, action.microbatch}; }

  // A microbatch on a stage, from its beginning to the end of its backward, or of its forward in an evaluation.
  struct InFlight {
    device::Arena arena;
    model::Microbatch batch;
    model::StageSaved saved;
    Tensor input;          // from the stage before
    comm::Handle arrival;  // of the input, from another rank
    InFlight(device::Device& device, device::MemoryLedger& ledger, int64_t expected)
        : arena(device, ledger, device::Owner::activations, expected) {}
  };

  const model::Stage& stage(int64_t number) const { return stages_[static_cast<size_t>(placement_.chunk_of(number))]; }
  InFlight& open(Key key, const Execution& execution);
  // Opens it with memory for its input.
  InFlight& open_with_input(Key key, const Execution& execution);
  // The microbatch's passes on the stage are done.
  void close(Key key, model::Counts& counts);
  void forward(const Action& action, const Execution& execution, model::Counts& counts);
  // The whole backward or its input part.
  void backward(const Action& action, const Execution& execution, model::Counts& counts);
  void backward_weight(const Action& action, const Execution& execution, model::Counts& counts);
  void receive(const Action& action, const Execution& execution);
  void send(const Action& action);
  // The rank along pp at the other end of a transfer.
  int64_t peer(const Action& transfer) const { return placement_.rank_of(peer_stage(transfer)); }
  // Calls compute(stage, pass, what is under way) for the action, and notes its time.
  template <typename Compute>
  void compute(const Action& action, const Execution& execution, const Compute& compute);
  model::Pass pass(InFlight& in_flight, const Execution& execution, const model::Observer* observer);
  // Has so many at least; all are free.
  void make_parcels(int64_t count);
  ParcelPointer take_parcel();

  const config::Config& config_;
  comm::Communicator& communicator_;
  device::Device& device_;
  device::MemoryLedger& ledger_;
  StagePlacement placement_;
  const std::deque<model::Stage>& stages_;  // of this rank
  device::ElementTypes types_;
  comm::ProcessGroup& pipeline_;
  parallel::TensorRegion tensor_;
  parallel::ContextRegion context_;
  std::optional<parallel::ExpertDispatch> dispatch_;
  Shape message_shape_;  // [T', H]
  ArenaSizes expected_;
  device::Arena scratch_, logits_;
  std::map<int64_t, std::vector<std::unique_ptr<InFlight>>> idle_;  // by stage, since stages differ in size
  std::map<Key, std::unique_ptr<InFlight>> in_flight_;
  std::map<Key, ParcelPointer> activations_;  // outputs of stages, not yet sent
  std::map<Key, ParcelPointer> gradients_;    // of outputs: made or arriving; then of inputs, not yet sent
  std::vector<ParcelPointer> sending_, free_;
  ComputedSeconds computed_seconds_;
};

}  // namespace quintet::pipeline
