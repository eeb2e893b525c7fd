// The emulated NCCL's operations: what ranks call, how their calls meet, and the data that moves once all have come.
#pragma once

#include <nccl.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace quintet::gpu_emulator {

enum class NcclKind : uint8_t { all_reduce, reduce, reduce_scatter, all_gather, broadcast, send, receive };

// One rank's part in an operation.
struct NcclCall {
  NcclKind kind = NcclKind::all_reduce;
  const void* from = nullptr;  // null: this rank reads nothing
  void* to = nullptr;          // null: this rank is given nothing
  size_t count = 0;
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t reduction = ncclSum;
  int other = 0;  // the root, or the peer of a message

  // "ncclAllReduce of 5 fp32".
  std::string describe() const;
};

size_t size_of(ncclDataType_t type);  // 0: not emulated
bool is_message(NcclKind kind);

// One operation, as the calls of its ranks come in and reach the heads of their streams.
struct NcclMeeting {
  std::vector<std::optional<NcclCall>> calls;  // by rank; of a message the senders, then the receivers
  std::vector<bool> here;                      // whose streams have come to it
  int wanted = 0;                              // ranks that take part
  int called = 0;                              // that have asked for it
  bool done = false;
  bool broken = false;  // a rank was aborted: it never happens

  bool complete() const;  // all have called
  bool ready() const;     // and their streams are there
};

// What the ranks of a communicator share.
struct NcclClique {
  int ranks = 0;
  std::vector<int> devices;  // by rank, -1 before it has come
  int joined = 0;
  uint64_t order = 0;   // seeds the order of its sums
  std::string problem;  // why it never stands

  // The meeting of rank `rank`'s next operation of this kind.
  std::shared_ptr<NcclMeeting> meeting_of(int rank, const NcclCall& call);
  size_t place_in_meeting(int rank, const NcclCall& call) const;
  // Notes the call; empty, or how it contradicts one that came before.
  std::string join(NcclMeeting& meeting, int rank, const NcclCall& call) const;

 private:
  // By (end of the message or rank of the collective, from, to): how many were called.
  std::map<std::tuple<int, int, int>, int64_t> called_;
  // By (from, to, number): those that not all have called.
  std::map<std::tuple<int, int, int64_t>, std::shared_ptr<NcclMeeting>> meetings_;
};

// Empty, or what is wrong with the memory of a call by a rank of `ranks` on `device`.
std::string memory_misuse(const NcclCall& call, int rank, int ranks, int device);

// Moves the data of a meeting that is ready; a report where memory is not what it was. Sums are added in an order drawn
// from `order`, another for each run of elements, rounding each time: NCCL promises none.
std::string perform(NcclMeeting& meeting, const NcclClique& clique);

}  // namespace quintet::gpu_emulator
