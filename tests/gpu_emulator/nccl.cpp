// NCCL's functions over the fake machine: communicators, groups of calls, and the operations of streams that they
// become.
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <utility>

#include <fmt/core.h>

#include "tests/gpu_emulator/machine.h"
#include "tests/gpu_emulator/nccl_groups.h"
#include "tests/gpu_emulator/nccl_operations.h"

using namespace quintet::gpu_emulator;

namespace {

struct Part {
  std::shared_ptr<NcclMeeting> meeting;
  size_t place;
  NcclCall call;
};
using Parts = std::vector<Part>;

struct Identity {
  uint64_t number, order;
};

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): NCCL's name
struct ncclComm {
  enum class State : uint8_t { standing, destroyed, aborted };
  std::shared_ptr<NcclClique> clique;
  int rank = 0, device = 0;
  std::atomic<State> state = State::standing;
  std::vector<std::shared_ptr<NcclMeeting>> unfinished;
};

namespace {

using State = ncclComm::State;

// All communicators, and those to be. They stay, so that a stale handle is known for what it is.
struct Board {
  std::mutex mutex;  // taken after the machine's
  std::condition_variable changed;
  std::map<uint64_t, std::shared_ptr<NcclClique>> cliques;
  std::vector<std::unique_ptr<ncclComm>> comms;
  uint64_t identities = 0;
};
Board& board() {
  static auto& instance = *new Board;  // never destroyed: threads may wait here for ranks that failed, to the very end
  return instance;
}

thread_local std::string last_error;

struct Pending {
  ncclComm_t comm;
  cudaStream_t stream;
  NcclCall call;
};
struct Group {
  int depth = 0;
  std::vector<Pending> calls;
  ~Group() {
    if (depth > 0) Machine::instance().report("a thread ended with an NCCL group that it had started");
  }
};
thread_local Group group;

ncclResult_t refuse(ncclResult_t code, std::string text) {
  last_error = std::move(text);
  return code;
}

ncclResult_t report(const std::string& text) {
  Machine::instance().report(text);
  return refuse(ncclInvalidUsage, text);
}

// Success, or that the device has met a fault.
ncclResult_t status() {
  std::string fault = Machine::instance().fault();
  return fault.empty() ? ncclSuccess : refuse(ncclUnhandledCudaError, std::move(fault));
}

// Empty if the communicator can be called.
std::string misuse_of(ncclComm_t comm) {
  const std::lock_guard lock(board().mutex);
  const auto& all = board().comms;
  if (std::none_of(all.begin(), all.end(), [=](const auto& held) { return held.get() == comm; })) {
    return "no such communicator";
  }
  switch (comm->state) {
    case State::destroyed: return "a communicator that was destroyed";
    case State::aborted: return "a communicator that was aborted";
    case State::standing: break;
  }
  return {};
}

// One operation of the stream: it goes on once every part has met its counterparts there.
void enqueue(ncclComm_t comm, cudaStream_t stream, const std::shared_ptr<Parts>& parts) {
  const auto arrive = [parts] {
    const std::lock_guard lock(board().mutex);
    for (const Part& part : *parts) part.meeting->here[part.place] = true;
  };
  const auto ready = [comm, parts] {
    const std::lock_guard lock(board().mutex);
    return comm->state == State::aborted || std::all_of(parts->begin(), parts->end(), [](const Part& part) {
             return part.meeting->done || part.meeting->ready();
           });
  };
  const auto run = [comm, parts] {
    const std::lock_guard lock(board().mutex);
    for (const Part& part : *parts) {
      if (comm->state == State::aborted) break;
      if (part.meeting->done) continue;
      std::string fault = perform(*part.meeting, *comm->clique);
      if (!fault.empty()) return fault;
      part.meeting->done = true;
    }
    return std::string();
  };
  Machine::instance().enqueue(stream, {.run = run, .ready = ready, .reached = arrive});
}

// Calls of one group on one communicator.
ncclResult_t launch(ncclComm_t comm, cudaStream_t stream, const std::vector<NcclCall>& calls) {
  auto parts = std::make_shared<Parts>();
  std::string contradiction;
  {
    const std::lock_guard lock(board().mutex);
    std::erase_if(comm->unfinished, [](const auto& meeting) { return meeting->done; });
    for (const NcclCall& call : calls) {
      auto meeting = comm->clique->meeting_of(comm->rank, call);
      contradiction = comm->clique->join(*meeting, comm->rank, call);
      if (!contradiction.empty()) break;
      comm->unfinished.push_back(meeting);
      parts->push_back({std::move(meeting), comm->clique->place_in_meeting(comm->rank, call), call});
    }
  }
  if (!contradiction.empty()) return report(contradiction);
  enqueue(comm, stream, parts);
  return status();
}

ncclResult_t launch_group() {
  std::vector<Pending> calls = std::exchange(group.calls, {});
  while (!calls.empty()) {
    const Pending first = calls.front();
    std::vector<NcclCall> of_comm;
    for (const Pending& pending : calls) {
      if (pending.comm != first.comm) continue;
      if (pending.stream != first.stream) return report("an NCCL group calls one communicator on two streams");
      of_comm.push_back(pending.call);
    }
    std::erase_if(calls, [&](const Pending& pending) { return pending.comm == first.comm; });
    const ncclResult_t launched = launch(first.comm, first.stream, of_comm);
    if (launched != ncclSuccess) return launched;
  }
  return ncclSuccess;
}

ncclResult_t call(const NcclCall& made, ncclComm_t comm, cudaStream_t stream) {
  if (const ncclResult_t fault = status(); fault != ncclSuccess) return fault;
  std::string misuse = misuse_of(comm);
  if (misuse.empty() && stream == nullptr) misuse = "the default stream is not used here";
  if (misuse.empty() && !Machine::instance().is_stream(stream)) misuse = "no such stream";
  if (misuse.empty() && stream->device != comm->device) misuse = "a stream of another device";
  if (misuse.empty() && size_of(made.type) == 0) misuse = "not emulated";
  if (misuse.empty() && made.reduction != ncclSum && made.reduction != ncclMax) misuse = "not emulated";
  const int ranks = misuse.empty() ? comm->clique->ranks : 0;
  if (misuse.empty() && (made.other < 0 || made.other >= ranks)) misuse = fmt::format("only {} ranks", ranks);
  if (!misuse.empty()) return refuse(ncclInvalidArgument, fmt::format("{}: {}", made.describe(), misuse));
  misuse = memory_misuse(made, comm->rank, ranks, comm->device);
  if (!misuse.empty()) return refuse(ncclInvalidArgument, misuse);
  group.calls.push_back({comm, stream, made});
  return group.depth == 0 ? launch_group() : ncclSuccess;
}

// Empty, or why this rank cannot be one of the clique's.
std::string joins(NcclClique& clique, int ranks, int rank, int device) {
  if (clique.ranks == 0) {
    clique.ranks = ranks;
    clique.devices.assign(static_cast<size_t>(ranks), -1);
  }
  if (clique.ranks != ranks) return fmt::format("{} ranks for a communicator of {}", ranks, clique.ranks);
  if (rank < 0 || rank >= ranks) return fmt::format("rank {} of {}", rank, ranks);
  int& place = clique.devices[static_cast<size_t>(rank)];
  if (place != -1) return fmt::format("rank {} has joined already", rank);
  const auto twin = std::find(clique.devices.begin(), clique.devices.end(), device);
  if (twin != clique.devices.end()) {
    return fmt::format("duplicate GPU: ranks {} and {} both use device {}", twin - clique.devices.begin(), rank,
                       device);
  }
  place = device;
  ++clique.joined;
  return {};
}

}  // namespace

namespace quintet::gpu_emulator {

void report_open_group(const char* function, cudaStream_t stream) {
  if (std::none_of(group.calls.begin(), group.calls.end(), [=](const Pending& call) { return call.stream == stream; }))
    return;
  Machine::instance().report(fmt::format("{}: {} for this stream waits in an NCCL group that has not ended", function,
                                         group.calls.front().call.describe()));
  group.calls.clear();
}

}  // namespace quintet::gpu_emulator

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
  }
  return "unknown result code";
}

const char* ncclGetLastError(ncclComm_t) { return last_error.c_str(); }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = {};
  Identity identity{0, Machine::instance().draw()};
  const std::lock_guard lock(board().mutex);
  identity.number = ++board().identities;
  std::memcpy(id->internal, &identity, sizeof(identity));
  const auto clique = board().cliques[identity.number] = std::make_shared<NcclClique>();
  clique->order = identity.order;
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  *comm = nullptr;
  Identity identity;
  std::memcpy(&identity, id.internal, sizeof(identity));
  int device = 0;
  cudaGetDevice(&device);
  std::unique_lock lock(board().mutex);
  const auto found = board().cliques.find(identity.number);
  if (found == board().cliques.end()) return refuse(ncclInvalidArgument, "a unique id that nobody asked for");
  const std::shared_ptr<NcclClique> clique = found->second;
  std::string problem = joins(*clique, ranks, rank, device);
  if (clique->problem.empty()) clique->problem = std::move(problem);
  board().changed.notify_all();
  board().changed.wait(lock, [&] { return clique->joined == ranks || !clique->problem.empty(); });
  if (!clique->problem.empty()) return refuse(ncclInvalidUsage, clique->problem);
  board().comms.push_back(std::make_unique<ncclComm>());
  *comm = board().comms.back().get();
  (*comm)->clique = clique;
  (*comm)->rank = rank;
  (*comm)->device = device;
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (const std::string misuse = misuse_of(comm); !misuse.empty()) {
    return refuse(ncclInvalidArgument, "ncclCommDestroy: " + misuse);
  }
  if (group.depth > 0) return report("ncclCommDestroy within an NCCL group that has not ended");
  std::string fault;
  {
    const std::lock_guard lock(board().mutex);
    std::erase_if(comm->unfinished, [](const auto& meeting) { return meeting->done; });
    if (!comm->unfinished.empty()) {
      const NcclMeeting& first = *comm->unfinished.front();
      const auto known =
          std::find_if(first.calls.begin(), first.calls.end(), [](const auto& call) { return call.has_value(); });
      fault = fmt::format("ncclCommDestroy by rank {}: {} {}", comm->rank, (*known)->describe(),
                          first.complete() ? "has not finished" : "never met its counterpart");
    }
    comm->state = State::destroyed;
  }
  return fault.empty() ? status() : report(fault);
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const std::string misuse = misuse_of(comm);
  {
    const std::lock_guard lock(board().mutex);
    const bool known =
        std::any_of(board().comms.begin(), board().comms.end(), [=](const auto& held) { return held.get() == comm; });
    if (!known || comm->state == State::destroyed || comm->state == State::aborted) {
      return refuse(ncclInvalidArgument, "ncclCommAbort: " + misuse);
    }
    comm->state = State::aborted;
    for (const auto& meeting : comm->unfinished) meeting->broken = true;
  }
  Machine::instance().wake();
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  if (const std::string misuse = misuse_of(comm); !misuse.empty()) {
    return refuse(ncclInvalidArgument, "ncclCommGetAsyncError: " + misuse);
  }
  *error = status();
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t reduction,
                           ncclComm_t comm, cudaStream_t stream) {
  return call({NcclKind::all_reduce, from, to, count, type, reduction, 0}, comm, stream);
}

ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t reduction, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  if (misuse_of(comm).empty() && comm->rank != root) to = nullptr;
  return call({NcclKind::reduce, from, to, count, type, reduction, root}, comm, stream);
}

ncclResult_t ncclReduceScatter(const void* from, void* to, size_t to_count, ncclDataType_t type, ncclRedOp_t reduction,
                               ncclComm_t comm, cudaStream_t stream) {
  return call({NcclKind::reduce_scatter, from, to, to_count, type, reduction, 0}, comm, stream);
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t from_count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return call({NcclKind::all_gather, from, to, from_count, type, ncclSum, 0}, comm, stream);
}

ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  if (misuse_of(comm).empty() && comm->rank != root) from = nullptr;
  return call({NcclKind::broadcast, from, to, count, type, ncclSum, root}, comm, stream);
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return call({NcclKind::send, from, nullptr, count, type, ncclSum, peer}, comm, stream);
}

ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return call({NcclKind::receive, nullptr, to, count, type, ncclSum, peer}, comm, stream);
}

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group.depth == 0) return refuse(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  return --group.depth > 0 ? ncclSuccess : launch_group();
}
