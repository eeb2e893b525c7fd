// AdamW over flat buckets with ZeRO's partition (Rajbhandari et al. 2020): gradients are summed over the data ranks
// bucket by bucket; under stage 1 each rank keeps moments for its piece of every bucket, updates that piece and hands
// the new weights round; under stage 0 every rank keeps and updates everything. Both give the same bits: the same
// owners add the same pieces in the same order.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lib/base/exact_sum.h"
#include "lib/comm/communicator.h"
#include "lib/config/config.h"
#include "lib/device/memory.h"
#include "lib/optimizer/replica_sums.h"
#include "lib/parallel/parameter_store.h"

namespace quintet::optimizer {

class ZeroOptimizer : public parallel::UnitObserver {
 public:
  // `store` must be allocated.
  ZeroOptimizer(device::Device& device, device::MemoryLedger& ledger, comm::Communicator& communicator,
                parallel::ParameterStore& store, const config::Optimizer& config, const config::Zero& zero);

  // Draws the master weights, where weights are roundings of them.
  void initialise(uint64_t seed);
  // Clears the gradients. Each unit's will be completed `microbatches` times; a bucket whose units all are final starts
  // its reduction, with `overlap` at once.
  void begin_step(int64_t microbatches);
  // Clears the gradients for passes after which they stay what this rank found; the step cannot go on.
  void begin_pass_without_reduction();
  void before(const parallel::Unit& unit, parallel::Use use) override;
  void after(const parallel::Unit& unit, parallel::Use use) override;
  // Returns when this rank's pieces hold sums over all ranks that saw a part of them.
  void finish_reduction();
  // Adds the squares of this rank's share of the reduced gradient: over all ranks each parameter counts once.
  void add_squared_norm(ExactSum& sum);
  // One AdamW update with the gradients times `gradient_scale`; afterwards every rank has all new weights.
  void update(double learning_rate, double gradient_scale);

  // Brings the reduced gradients of all pieces to every rank, for dumps.
  void gather_gradients();

 private:
  struct Range {
    int64_t begin, count;  // in the store's flat buffers
  };
  // The ranks that sum a bucket, and the same for dumps.
  comm::ProcessGroup& group_of(const parallel::Bucket& bucket) const;
  comm::ProcessGroup& uncounted_group_of(const parallel::Bucket& bucket) const;
  // What this rank owns of a bucket's sum, and what it updates of it.
  Range owned(const parallel::Bucket& bucket) const;
  Range updated(const parallel::Bucket& bucket) const;
  void start_reduction(size_t index);

  device::Device& device_;
  comm::Communicator& communicator_;
  parallel::ParameterStore& store_;
  config::Optimizer config_;
  bool shards_state_;
  bool overlap_;
  device::Buffer first_moment_, second_moment_, master_;  // of the updated ranges, bucket after bucket
  std::vector<int64_t> state_offset_;                     // of each bucket in them
  std::vector<int64_t> open_;                             // microbatches that each unit's gradients still lack
  std::vector<size_t> missing_;                           // parameters of each bucket that are not final
  std::vector<comm::Handle> reductions_;
  std::optional<ReplicaSums> replica_sums_;
  int64_t updates_ = 0;
};

}  // namespace quintet::optimizer
