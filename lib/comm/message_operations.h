// The two moves that every collective is made of: exchanging pieces with peers, and folding the pieces of all members.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/comm/communicator.h"
#include "lib/comm/process_group.h"
#include "lib/comm/transport.h"

namespace quintet::comm {

// Who takes part, and what the operation is called in reports.
struct OperationInfo {
  Communicator* communicator = nullptr;
  Transport* transport = nullptr;
  std::string_view kind;  // "all-reduce"
  std::string what;       // "gradients of bucket 3"
  int64_t bytes = 0;
  std::string_view group_name;  // "dp+ep"; lives as long as the group
  uint8_t lane = 0;
  std::shared_ptr<Strand> strand;
};

// Pieces on their way to and from peers (world ranks). Empty pieces do not travel.
class Exchange {
 public:
  explicit Exchange(std::shared_ptr<Strand> strand) : strand_(std::move(strand)) {}

  void send(Transport& transport, int64_t peer, Tag tag, std::span<const std::byte> data);
  void receive(Transport& transport, int64_t peer, Tag tag, std::span<std::byte> destination);

  // All pieces have arrived / have been taken.
  bool received();
  bool sent();
  void withdraw();

  // Peers whose pieces are missing / who have not taken theirs.
  std::vector<int64_t> missing() const;
  std::vector<int64_t> not_taken() const;

 private:
  template <typename T>
  struct Queue {
    struct Entry {
      int64_t peer;
      std::unique_ptr<T> message;
    };
    std::vector<Entry> entries;
    size_t first_pending = 0;  // only the first is asked: all must be done, and each ask costs a lock
  };
  std::shared_ptr<Strand> strand_;
  Queue<Outgoing> outgoing_;
  Queue<Incoming> incoming_;
};

// The members' pieces of one range, added in group order into `output`.
class Fold {
 public:
  Fold() = default;
  // `own` is this rank's piece; the others' come under `tag`. With nothing to fold (no bytes) it is done at once.
  Fold(const OperationInfo& info, const ProcessGroup& group, Tag tag, DType dtype, Reduction reduction,
       std::span<const std::byte> own, std::byte* output);

  bool done();
  void withdraw();
  std::vector<int64_t> missing() const;

 private:
  // Opens the next piece of every peer, all of which are ready; their size in bytes.
  int64_t open_pieces();

  std::shared_ptr<Strand> strand_;
  std::vector<int64_t> members_;
  std::vector<std::unique_ptr<Incoming>> incoming_;  // in group order; none at this rank's place
  size_t first_pending_ = 0;
  DType dtype_ = DType::u8;
  Reduction reduction_ = Reduction::sum;
  std::span<const std::byte> own_;
  std::byte* output_ = nullptr;
  int64_t offset_ = 0;  // bytes folded
  std::vector<const std::byte*> pieces_;
};

// Messages only: all-gather, broadcast, all-to-all, send, receive.
class ExchangeOperation : public Operation {
 public:
  ExchangeOperation(OperationInfo info, Exchange exchange)
      : Operation(info.strand), info_(std::move(info)), exchange_(std::move(exchange)) {}
  bool poll() override { return exchange_.received() && exchange_.sent(); }
  void withdraw() override { exchange_.withdraw(); }
  std::string describe() const override;

 private:
  OperationInfo info_;
  Exchange exchange_;
};

// Pieces to their owners, who fold them.
class ReduceScatterOperation : public Operation {
 public:
  ReduceScatterOperation(OperationInfo info, const ProcessGroup& group, Tensor input, std::span<const int64_t> counts,
                         Tensor output);
  bool poll() override { return fold_.done() && scatter_.sent(); }
  void withdraw() override;
  std::string describe() const override;

 private:
  OperationInfo info_;
  Exchange scatter_;
  Fold fold_;
};

// The same in place, then the folded pieces to all. Tiny tensors of small groups on the host go whole to everyone
// instead, which adds in the same order.
class AllReduceOperation : public Operation {
 public:
  AllReduceOperation(OperationInfo info, const ProcessGroup& group, Tensor tensor, Reduction reduction);
  bool poll() override;
  void withdraw() override;
  std::string describe() const override;

 private:
  void start_direct(Tag tag);
  void start_scattered(Tag tag);

  enum class Stage : uint8_t { folding, scattering, gathering, direct };

  OperationInfo info_;
  const ProcessGroup& group_;
  Tensor tensor_;
  Reduction reduction_;
  Tag gather_tag_;
  std::vector<std::span<std::byte>> pieces_;
  std::vector<std::byte> direct_result_;  // peers may still read the tensor
  Stage stage_ = Stage::folding;
  Exchange scatter_, gather_;
  Fold fold_;
};

// Calls visit(member, its world rank) for all members but this rank, the next one first, so that not all turn to the
// same peer at once.
template <typename Visit>
void for_each_peer(const ProcessGroup& group, Visit&& visit) {
  for (int64_t step = 1; step < group.size(); ++step) {
    const int64_t member = (group.rank() + step) % group.size();
    visit(member, group.members()[static_cast<size_t>(member)]);
  }
}

// Byte ranges of pieces of `counts` elements that lie one after the other.
std::vector<std::span<std::byte>> pieces_of(const Tensor& tensor, std::span<const int64_t> counts);

}  // namespace quintet::comm
