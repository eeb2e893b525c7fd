// Gradients of which several ranks see a part each although they hold the same parameter: norms where tensor ranks
// split the sequence or the heads, key heads that a block of tensor ranks shares, a tied embedding on the first and the
// last stage. They are summed once a step, after the sum over data ranks: then a rank's share is what it updates, no
// more.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/comm/communicator.h"
#include "lib/device/memory.h"
#include "lib/parallel/parameter_store.h"

namespace quintet::optimizer {

class ReplicaSums {
 public:
  // `updated`: the spans of the store's flat buffers that this rank updates, equal on all ranks that share them.
  ReplicaSums(device::Device& device, device::MemoryLedger& ledger, comm::Communicator& communicator,
              const parallel::ParameterStore& store, const std::vector<parallel::ParameterSpan>& updated);

  // Every part becomes the sum over its ranks.
  void sum();

 private:
  // What one group sums: the gradients, and one buffer where they travel side by side.
  struct Share {
    comm::ProcessGroup* group = nullptr;
    std::string what;
    std::vector<Tensor> gradients;
    int64_t elements = 0;  // of all of them
    device::Buffer packed;
  };
  void pack(const Share& share, bool back);

  device::Device& device_;
  std::vector<Share> shares_;
};

}  // namespace quintet::optimizer
