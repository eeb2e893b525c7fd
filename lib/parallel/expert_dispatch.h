// The way of rows to the experts that they chose and back, over the ranks along ep (Lepikhin et al. 2020; dropless as
// in Gale et al. 2022). A choice that is kept is a slot. A rank sends each slot's row to the rank that holds the
// expert, so that pieces are uneven and may be empty. Where tensor ranks split the sequence, each sends its own rows,
// and rows received are gathered over tp before the experts and their parts summed after, as around a dense MLP.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "lib/comm/communicator.h"
#include "lib/device/memory.h"
#include "lib/parallel/tensor_region.h"

namespace quintet::parallel {

constexpr int32_t kDropped = -1;

class ExpertDispatch {
 public:
  // `experts` of a layer are dealt to the ranks along ep in equal runs. `room`: for how many rows a rank shall have
  // memory, as a multiple of an even load; a dry run sees so many arrive (Device::computes()).
  ExpertDispatch(comm::Communicator& communicator, device::Device& device, const TensorRegion& tensor, int64_t experts,
                 double room = 1);

  // How the rows of a layer and microbatch travel. Tensors live as long as the arena that they were made in.
  struct Plan {
    Tensor row_of_slot;                   // i32 [slots], slots in the order of their experts, then rows, then choices
    Tensor slot_of_choice;                // i32 [T', K]; kDropped
    std::vector<int64_t> sent, received;  // rows to and from each rank along ep
    std::vector<int64_t> gathered;        // rows received by each of the tensor ranks that gather
    Tensor by_expert, by_arrival;         // i32 [W]: rows of one order in the other; absent where they are the same
    std::vector<int64_t> expert_rows;     // W rows by expert of this rank

    int64_t sent_rows() const { return row_of_slot.elements(); }
  };
  // choices: [T', K] on the host, kDropped where a slot is not kept.
  Plan plan(device::Arena& arena, std::span<const int32_t> choices, int64_t top_k) const;
  int64_t received_rows(const Plan& plan) const;
  // W.
  int64_t expert_rows(const Plan& plan) const;

  int64_t ranks() const { return ranks_.size(); }
  // [slots, H] to [rows received, H] and back; with one rank along ep both are the same and nothing is done.
  void send(const Plan& plan, Tensor slots, Tensor received, std::string_view what) const;
  void send_back(const Plan& plan, Tensor received, Tensor slots, std::string_view what) const;
  // [rows received, H] to [W, H] by expert, in scratch, or the tensor itself.
  Tensor gather(device::Arena& scratch, const Plan& plan, Tensor received, std::string_view what) const;
  // Parts of a sum over tp, [W, H] by expert, to the sum, [rows received, H], in scratch; complete once `done` has been
  // waited for.
  struct Sum {
    Tensor total;
    comm::Handle done;
  };
  Sum start_sum(device::Arena& scratch, const Plan& plan, Tensor parts, std::string_view what) const;

  // The ranks that hold rows of the same sequences.
  comm::ProcessGroup& sequence_group() const { return sequence_; }
  // Whether this rank's choices count in totals: where tensor ranks hold the same rows the first one's do.
  bool counts() const { return tensor_.splits_rows() || tensor_.rank() == 0; }

 private:
  Tensor upload(device::Arena& arena, std::vector<int32_t>& values) const;
  // What exchange_counts() would find where the rank is as full as there is room for; it has sent `kept` rows to
  // itself.
  std::vector<int64_t> fullest_counts(int64_t rows, int64_t top_k, int64_t kept) const;
  // Rows of each own expert from each rank along ep, by tensor rank that gathers: [tensor ranks, ranks, own experts].
  std::vector<int64_t> exchange_counts(std::span<const int64_t> slots_of_expert) const;

  device::Device& device_;
  const TensorRegion& tensor_;
  comm::ProcessGroup& ranks_;
  comm::ProcessGroup& tensor_counts_;
  comm::ProcessGroup& sequence_;
  int64_t experts_, own_experts_;
  double room_;
};

}  // namespace quintet::parallel
