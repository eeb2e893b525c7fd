// AdamW over the store's buckets with ZeRO's partition (Rajbhandari et al. 2020): of every bucket a rank owns a piece.
// Under stage 0 all ranks hold and update everything; stage 1 holds moments and master weights of the own piece only,
// stage 2 gradients, too, stage 3 weights, too. The same owners add the same pieces in the same order under all of
// them: 0 and 1 give the same bits, and so do 2 and 3.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lib/base/exact_sum.h"
#include "lib/comm/communicator.h"
#include "lib/config/config.h"
#include "lib/device/memory.h"
#include "lib/optimizer/gathered_weights.h"
#include "lib/optimizer/gradient_policy.h"
#include "lib/optimizer/replica_sums.h"
#include "lib/parallel/parameter_store.h"

namespace quintet::optimizer {

// What a rank holds between uses under a stage of ZeRO.
struct ZeroExtents {
  parallel::Extent weights, gradients, state;
};
ZeroExtents extents_of(int64_t zero_stage);

class ZeroOptimizer : public parallel::UnitObserver {
 public:
  // `store` must be laid out, by unit from stage 2 on; its memory is taken here.
  ZeroOptimizer(device::Device& device, device::MemoryLedger& ledger, comm::Communicator& communicator,
                parallel::ParameterStore& store, const config::Optimizer& config, const config::Zero& zero);

  // Draws the weights, and the master weights where weights are roundings of them.
  void initialise(uint64_t seed);

  // A training step follows: clears the gradients; each unit's will be completed `microbatches` times.
  void begin_step(int64_t microbatches);
  // Forward passes follow that train nothing.
  void begin_evaluation();
  // The passes of a step follow, but no gradient is reduced: `look` sees what this rank found for each parameter when a
  // microbatch has completed it. The step cannot go on.
  using Look = std::function<void(const parallel::Parameter& parameter)>;
  void begin_search(Look look);
  void before(const parallel::Unit& unit, parallel::Use use) override;
  void after(const parallel::Unit& unit, parallel::Use use) override;

  // Returns when this rank's pieces hold sums over all ranks that saw a part of them.
  void finish_reduction();
  // Adds the squares of this rank's share of the reduced gradient: over all ranks each parameter counts once.
  void add_squared_norm(ExactSum& sum);
  // One AdamW update with the gradients times `gradient_scale`; afterwards every rank has its new weights.
  void update(double learning_rate, double gradient_scale);

  enum class Values : uint8_t { weights, gradients };
  // This rank's shard of a parameter, brought together from the pieces of its data ranks, all of which call it for the
  // same parameters in the same order; gradients are those that finish_reduction left. `memory` holds it where no rank
  // has it whole. Bytes are not counted.
  Tensor whole(const parallel::Parameter& parameter, Values values, device::Buffer& memory);

 private:
  device::Device& device_;
  device::MemoryLedger& ledger_;
  comm::Communicator& communicator_;
  parallel::ParameterStore& store_;
  config::Optimizer config_;
  bool sums_whole_, overlap_;
  parallel::FlatBuffer first_moment_, second_moment_, master_;
  std::unique_ptr<GradientPolicy> gradients_;
  std::optional<GatheredWeights> gathered_;  // stage 3
  std::optional<ReplicaSums> replica_sums_;
  Look look_;
  int64_t updates_ = 0;
};

}  // namespace quintet::optimizer
