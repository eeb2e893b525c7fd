// What becomes of a unit's gradients once layers have added to them. Stages 0 and 1 of ZeRO sum whole gradients once a
// step; 2 and 3 reduce each microbatch's and keep this rank's piece of the sum (Rajbhandari et al. 2020, section 5).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lib/comm/communicator.h"
#include "lib/config/config.h"
#include "lib/device/memory.h"
#include "lib/parallel/parameter_store.h"

namespace quintet::optimizer {

class GradientPolicy {
 public:
  GradientPolicy() = default;
  virtual ~GradientPolicy() = default;
  GradientPolicy(const GradientPolicy&) = delete;
  GradientPolicy& operator=(const GradientPolicy&) = delete;

  // Clears the gradients. Each unit's will be complete `microbatches` times.
  virtual void begin_step(int64_t microbatches) = 0;
  // A layer is about to add to the unit's gradients.
  virtual void before(const parallel::Unit& unit) = 0;
  // The unit's gradients of one more microbatch are there, and go into the step's.
  virtual void complete(const parallel::Unit& unit) = 0;
  // In place of complete(): they do not, and the step cannot be finished.
  virtual void discard(const parallel::Unit& unit) = 0;
  // Returns when the store's gradients hold, in this rank's pieces at least, the sums over microbatches and over the
  // ranks that share them.
  virtual void finish() = 0;
};

// What both need.
struct GradientContext {
  device::Device& device;
  device::MemoryLedger& ledger;
  comm::Communicator& communicator;
  parallel::ParameterStore& store;
  bool overlap;  // reductions travel while layers compute
};

// Stage 0 with `whole_sums`, where every rank gets all of the sums; else stage 1.
std::unique_ptr<GradientPolicy> make_whole_gradients(const GradientContext& context, bool whole_sums);
// Stages 2 and 3.
std::unique_ptr<GradientPolicy> make_sharded_gradients(const GradientContext& context);

// The ranks that sum a bucket's gradients and gather its weights; booked under dp, or not at all.
inline comm::ProcessGroup& data_group(comm::Communicator& communicator, AxisSet data_axes, bool counted = true) {
  return communicator.group(data_axes, counted ? std::optional(Axis::dp) : std::nullopt);
}

}  // namespace quintet::optimizer
