// Every collective against a serial model, on the calling rank; runs the same over threads and MPI. Mismatches throw.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "lib/base/dtype.h"
#include "lib/comm/communicator.h"

namespace quintet::comm {

struct CollectiveCase {
  DType dtype = DType::fp32;
  int64_t elements = 0;
  uint64_t seed = 0;
};

// One group of the calling rank, by what its bytes are booked under.
using GroupOf = std::function<ProcessGroup&(std::optional<Axis> booked_under)>;

// `group` is booked under `booked_under`. All members call it with the same case.
void check_all_reduce(Communicator& communicator, ProcessGroup& group, Axis axis, const CollectiveCase& c);
void check_reduce_scatter(Communicator& communicator, ProcessGroup& group, Axis axis, const CollectiveCase& c);
void check_all_gather(Communicator& communicator, ProcessGroup& group, Axis axis, const CollectiveCase& c);
void check_broadcast(Communicator& communicator, ProcessGroup& group, Axis axis, const CollectiveCase& c);
void check_all_to_all(Communicator& communicator, ProcessGroup& group, Axis axis, const CollectiveCase& c);
void check_ring(Communicator& communicator, ProcessGroup& group, Axis axis, const CollectiveCase& c);
// Messages of several channels between neighbours, which both ends post in different orders.
void check_channels(ProcessGroup& group, const CollectiveCase& c);
// Many operations posted before the first is waited for, some on the uncounted group of the same ranks.
void check_outstanding(const GroupOf& group_of, const CollectiveCase& c);

// All of the above for one case.
void check_collectives(Communicator& communicator, const GroupOf& group_of, const CollectiveCase& c);
void check_collectives(Communicator& communicator, AxisSet axes, const CollectiveCase& c);

// All of the above over the blocks and ends of an axis of more than one rank, one after another and then together with
// operations of the axis, which neighbouring ranks post in different orders. All ranks of the world call it.
void check_sub_groups(Communicator& communicator, Axis axis, int64_t block_size, const CollectiveCase& c);

}  // namespace quintet::comm
