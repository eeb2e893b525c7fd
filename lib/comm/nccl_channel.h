// One NCCL communicator with a stream of its own, on which operations follow one another in the order of posting.
#pragma once

#include <nccl.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/comm/transport.h"
#include "lib/device/cuda/stream.h"
#include "lib/device/queue.h"

namespace quintet::comm {

// "NCCL: invalid usage (...)": throws Error(communication) unless `result` is success. `what` was being done.
void require_nccl(ncclResult_t result, const std::string& what);

// Operations are posted from the beginning; they reach the device once all members have joined. Joining blocks in NCCL,
// so that a thread of its own does it: ranks may come to several channels in any order.
class NcclChannel {
 public:
  using Call = std::function<ncclResult_t(ncclComm_t, cudaStream_t)>;

  // What was posted, and how far it is.
  struct Launch {
    Call call;
    std::shared_ptr<const device::Fence> inputs;  // what it reads was written, what it writes was read
    std::string what;
    bool launched = false;
    device::cuda::Event finished;
  };

  // `members` are world ranks, this one's place among them is `rank`. The first member sends the others NCCL's unique
  // id under `tag`.
  NcclChannel(Transport& transport, std::span<const int64_t> members, int64_t rank, Tag tag);
  // Finishes what is under way; where an exception unwinds, gives it up.
  ~NcclChannel();
  NcclChannel(const NcclChannel&) = delete;
  NcclChannel& operator=(const NcclChannel&) = delete;

  std::shared_ptr<Launch> post(Call call, std::shared_ptr<const device::Fence> inputs, std::string what);
  // Moves on without blocking. Throws Error(communication) where NCCL has met a failure.
  void advance();
  // Ends everything unfinished, on the device too.
  void abort() noexcept;

 private:
  struct Joining;
  void join_when_known();
  bool standing();

  ncclUniqueId id_{};
  Strand host_;  // of the messages that bring it
  std::vector<std::unique_ptr<Outgoing>> ids_sent_;
  std::unique_ptr<Incoming> id_received_;
  int size_, rank_;
  std::shared_ptr<Joining> joining_;  // shared with the thread that joins
  ncclComm_t comm_ = nullptr;
  bool aborted_ = false;
  device::cuda::Stream stream_;
  std::deque<std::shared_ptr<Launch>> waiting_;
};

}  // namespace quintet::comm
