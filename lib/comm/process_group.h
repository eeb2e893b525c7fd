// One rank's view of a group of ranks, and the operations that all its members call in the same order. The front counts
// bytes and checks operands; implementations move them: messages over threads or MPI (message_group.h), NCCL
// (nccl_group.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "lib/comm/operation.h"
#include "lib/device/tensor.h"
#include "lib/mesh/mesh.h"

namespace quintet::comm {

enum class Reduction : uint8_t { sum, max };

// Payload that this rank handed to others, by the collective's definition and not its transport.
struct Traffic {
  PerAxis<int64_t> bytes{};
  PerAxis<int64_t> operations{};
};

// Reductions add element by element in ascending group rank (bf16: in fp32, rounded once). Tensors are dense; counts
// are elements a member, in group order. `what` names the payload for reports ("gradients of bucket 3"). Operands must
// stay alive and untouched until the handle is done. With one member every operation is a copy at most.
// All tensors of an operation, on all members, lie on the host or all on the ranks' devices: empty ones have a
// place there, too. Where NCCL moves those on devices, it adds in an order of its own.
class ProcessGroup {
 public:
  // `members` are world ranks in ascending order, `rank` is this rank's place among them. Bytes are booked under
  // `booked_under`; without it they are not counted (metrics, evaluation, dumps, barriers).
  ProcessGroup(std::vector<int64_t> members, int64_t rank, std::optional<Axis> booked_under, Traffic& traffic);
  virtual ~ProcessGroup() = default;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int64_t size() const { return static_cast<int64_t>(members_.size()); }
  int64_t rank() const { return rank_; }
  std::span<const int64_t> members() const { return members_; }

  // In place.
  Handle all_reduce(Tensor tensor, Reduction reduction, std::string_view what);
  // input: all pieces in group order; output: this rank's reduced piece, which may alias its place in input (whose
  // other pieces are then left as they were).
  Handle reduce_scatter(Tensor input, std::span<const int64_t> counts, Tensor output, std::string_view what);
  // input: this rank's piece, which may alias its place in output; output: all pieces.
  Handle all_gather(Tensor input, std::span<const int64_t> counts, Tensor output, std::string_view what);
  Handle broadcast(Tensor tensor, int64_t root, std::string_view what);
  // input: a piece for each member; output: a piece from each. Pieces may be empty.
  Handle all_to_all(Tensor input, std::span<const int64_t> send_counts, Tensor output,
                    std::span<const int64_t> receive_counts, std::string_view what);
  // Messages between a pair arrive in the order sent, those of each channel for themselves: both ends name it, and may
  // come to several channels in different orders.
  Handle send(Tensor tensor, int64_t to, std::string_view what, uint16_t channel = 0);
  Handle receive(Tensor tensor, int64_t from, std::string_view what, uint16_t channel = 0);
  // Returns when every member has come.
  void barrier();

  // Elements of each member when `elements` are dealt as evenly as can be, the first members one more.
  std::vector<int64_t> even_counts(int64_t elements) const;

 protected:
  virtual Handle do_all_reduce(Tensor tensor, Reduction reduction, std::string_view what) = 0;
  virtual Handle do_reduce_scatter(Tensor input, std::span<const int64_t> counts, Tensor output,
                                   std::string_view what) = 0;
  virtual Handle do_all_gather(Tensor input, std::span<const int64_t> counts, Tensor output, std::string_view what) = 0;
  virtual Handle do_broadcast(Tensor tensor, int64_t root, std::string_view what) = 0;
  virtual Handle do_all_to_all(Tensor input, std::span<const int64_t> send_counts, Tensor output,
                               std::span<const int64_t> receive_counts, std::string_view what) = 0;
  virtual Handle do_send(Tensor tensor, int64_t to, std::string_view what, uint16_t channel) = 0;
  virtual Handle do_receive(Tensor tensor, int64_t from, std::string_view what, uint16_t channel) = 0;

 private:
  void book(int64_t bytes);
  std::vector<int64_t> members_;
  int64_t rank_;
  std::optional<Axis> booked_under_;
  Traffic& traffic_;
};

}  // namespace quintet::comm
