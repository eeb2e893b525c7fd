// What the tensor ranks do together around the layers that they split (Shoeybi et al. 2019, section 3; Korthikanti et
// al. 2022, section 4.2). Outside of these layers a rank works on its local rows of a [T, H] tensor: all of them, or,
// where the sequence is split too, T / tp of them, the rank's own run. Letters: lib/README.md.
#pragma once

#include <cstdint>
#include <string_view>

#include "lib/comm/communicator.h"
#include "lib/device/memory.h"

namespace quintet::parallel {

class TensorRegion {
 public:
  // `splits_rows`: parallel.sequence_parallel; without effect on one tensor rank.
  TensorRegion(comm::Communicator& communicator, bool splits_rows);

  int64_t ranks() const { return group_.size(); }
  int64_t rank() const { return group_.rank(); }
  comm::ProcessGroup& group() const { return group_; }
  // Whether each rank has rows of its own between the split layers.
  bool splits_rows() const { return splits_rows_; }
  // Local rows of `tokens`, which must divide.
  int64_t local_rows(int64_t tokens) const;
  // The local rows of a tensor that every rank holds whole.
  Tensor local(Tensor whole) const;

  // Rows of all ranks; complete once `done` has been waited for.
  struct Gathered {
    Tensor whole;  // [T, H]
    comm::Handle done;
  };
  // [local rows, H] to [T, H], in scratch; the tensor itself where rows are not split.
  Gathered start_gather(device::Arena& scratch, Tensor local, std::string_view what) const;
  Tensor gather(device::Arena& scratch, Tensor local, std::string_view what) const;

  // Where this rank's part [T, H] of a sum goes whose total's local rows shall lie in `total`.
  Tensor part_of(device::Arena& scratch, Tensor total) const;
  // Adds up the parts of all ranks; `total` holds the local rows of the sum once the handle has been waited for.
  [[nodiscard]] comm::Handle reduce(Tensor part, Tensor total, std::string_view what) const;

 private:
  comm::ProcessGroup& group_;
  bool splits_rows_;
};

}  // namespace quintet::parallel
