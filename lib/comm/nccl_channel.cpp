#include "lib/comm/nccl_channel.h"

#include <exception>
#include <mutex>
#include <thread>

#include "lib/base/integers.h"

namespace quintet::comm {
namespace {

std::string failure_of(ncclResult_t result) {
  return fmt::format("{} ({})", ncclGetErrorString(result), ncclGetLastError(nullptr));
}

}  // namespace

void require_nccl(ncclResult_t result, const std::string& what) {
  if (result != ncclSuccess) fail(ExitCode::communication, "{}: NCCL: {}", what, failure_of(result));
}

// What the joining thread leaves behind. It may outlive the channel: nothing ends a call that waits for others to join.
struct NcclChannel::Joining {
  std::mutex mutex;
  bool done = false, abandoned = false;
  ncclComm_t comm = nullptr;
  std::string problem;
};

NcclChannel::NcclChannel(Transport& transport, std::span<const int64_t> members, int64_t rank, Tag tag)
    : size_(narrow<int>(members.size())), rank_(narrow<int>(rank)) {
  const std::span<std::byte> bytes{reinterpret_cast<std::byte*>(&id_), sizeof(id_)};
  if (rank == 0) {
    require_nccl(ncclGetUniqueId(&id_), "a communicator's unique id");
    for (const int64_t peer : members.subspan(1)) ids_sent_.push_back(transport.send(peer, tag, bytes, host_));
  } else {
    id_received_ = transport.receive_into(members[0], tag, bytes, host_);
  }
  join_when_known();
}

NcclChannel::~NcclChannel() {
  if (std::uncaught_exceptions() > 0 || comm_ == nullptr) abort();
  if (aborted_) return;
  cudaStreamSynchronize(stream_);
  ncclCommDestroy(comm_);
}

void NcclChannel::join_when_known() {
  if (joining_ || (id_received_ && !id_received_->ready())) return;
  joining_ = std::make_shared<Joining>();
  int device = 0;
  device::cuda::require_success(cudaGetDevice(&device));
  std::thread([joining = joining_, id = id_, size = size_, rank = rank_, device] {
    ncclComm_t comm = nullptr;
    std::string problem;
    if (cudaSetDevice(device) != cudaSuccess) problem = "the GPU was lost";
    if (problem.empty()) {
      const ncclResult_t result = ncclCommInitRank(&comm, size, id, rank);
      if (result != ncclSuccess) problem = failure_of(result);
    }
    const std::lock_guard lock(joining->mutex);
    if (joining->abandoned && problem.empty()) ncclCommAbort(comm);
    joining->comm = comm;
    joining->problem = std::move(problem);
    joining->done = true;
  }).detach();
}

bool NcclChannel::standing() {
  if (comm_ != nullptr) return true;
  join_when_known();
  if (!joining_) return false;
  const std::lock_guard lock(joining_->mutex);
  if (!joining_->done) return false;
  if (!joining_->problem.empty())
    fail(ExitCode::communication, "NCCL: a communicator of {} ranks: {}", size_, joining_->problem);
  comm_ = joining_->comm;
  return true;
}

std::shared_ptr<NcclChannel::Launch> NcclChannel::post(Call call, std::shared_ptr<const device::Fence> inputs,
                                                       std::string what) {
  auto launch = std::make_shared<Launch>();
  launch->call = std::move(call);
  launch->inputs = std::move(inputs);
  launch->what = std::move(what);
  waiting_.push_back(launch);
  advance();
  return launch;
}

void NcclChannel::advance() {
  if (aborted_) throw Aborted("its NCCL communicator is gone");
  std::erase_if(ids_sent_, [](const auto& sent) { return sent->done(); });
  if (!standing()) return;
  ncclResult_t state = ncclSuccess;
  require_nccl(ncclCommGetAsyncError(comm_, &state), "the state of a communicator");
  require_nccl(state, waiting_.empty() ? "an operation under way" : waiting_.front()->what);
  for (; !waiting_.empty(); waiting_.pop_front()) {
    Launch& launch = *waiting_.front();
    device::cuda::hold_for(*launch.inputs, stream_);
    require_nccl(launch.call(comm_, stream_), launch.what);
    launch.finished.record(stream_);
    launch.launched = true;
  }
}

void NcclChannel::abort() noexcept {
  if (aborted_) return;
  aborted_ = true;
  waiting_.clear();
  ids_sent_.clear();
  id_received_.reset();
  if (comm_ != nullptr) {
    ncclCommAbort(comm_);
  } else if (joining_) {
    const std::lock_guard lock(joining_->mutex);
    joining_->abandoned = true;
    if (joining_->done && joining_->problem.empty()) ncclCommAbort(joining_->comm);
  }
}

}  // namespace quintet::comm
