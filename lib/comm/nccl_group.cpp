#include "lib/comm/nccl_group.h"

#include <algorithm>
#include <array>

#include "lib/base/integers.h"
#include "lib/comm/communicator.h"

namespace quintet::comm {
namespace {

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::fp64: return ncclFloat64;
    case DType::fp32: return ncclFloat32;
    case DType::bf16: return ncclBfloat16;
    case DType::i64: return ncclInt64;
    case DType::i32: return ncclInt32;
    case DType::u8: return ncclUint8;
  }
  return ncclUint8;
}

// A tensor as NCCL takes it.
struct Buffer {
  std::byte* data;
  size_t count;
  ncclDataType_t type;

  explicit Buffer(const Tensor& tensor)
      : data(static_cast<std::byte*>(tensor.data())),
        count(static_cast<size_t>(tensor.elements())),
        type(type_of(tensor.dtype())) {}
};

struct Piece {
  std::byte* data;
  size_t count, bytes;
};

// Pieces of `counts` elements that lie one after the other.
std::vector<Piece> pieces_of(const Tensor& whole, std::span<const int64_t> counts) {
  std::vector<Piece> pieces;
  auto* data = static_cast<std::byte*>(whole.data());
  for (const int64_t count : counts) {
    const auto bytes = static_cast<size_t>(count * size_of(whole.dtype()));
    pieces.push_back({data, static_cast<size_t>(count), bytes});
    if (bytes > 0) data += bytes;
  }
  return pieces;
}

bool all_equal(std::span<const int64_t> counts) {
  return std::all_of(counts.begin(), counts.end(), [&](int64_t count) { return count == counts[0]; });
}

// The calls that `calls(include)` hands to include(), as one: NCCL would otherwise wait for each before it begins the
// next.
template <typename Calls>
ncclResult_t grouped(Calls&& calls) {
  ncclResult_t first_failure = ncclGroupStart();
  calls([&](ncclResult_t result) {
    if (first_failure == ncclSuccess) first_failure = result;
  });
  const ncclResult_t end = ncclGroupEnd();
  return first_failure == ncclSuccess ? end : first_failure;
}

class NcclOperation : public Operation {
 public:
  NcclOperation(NcclChannel& channel, device::WorkQueue& queue, std::shared_ptr<NcclChannel::Launch> launch)
      : channel_(channel), queue_(queue), launch_(std::move(launch)) {}

  bool poll() override {
    if (finished_) return true;
    channel_.advance();
    finished_ = launch_->launched && launch_->finished.happened();
    return finished_;
  }
  bool joinable() override { return poll() || launch_->launched; }
  void join() override {
    if (!finished_) queue_.wait_for(launch_->finished);
  }
  bool silent() override { return true; }
  void withdraw() override {
    if (!finished_) channel_.abort();
  }
  std::string describe() const override {
    return launch_->what +
           (launch_->launched ? "; on the device" : "; not all members have joined NCCL's communicator");
  }

 private:
  NcclChannel& channel_;
  device::WorkQueue& queue_;
  std::shared_ptr<NcclChannel::Launch> launch_;
  bool finished_ = false;
};

}  // namespace

NcclGroup::NcclGroup(const ProcessGroup& group, const GroupPlace& place, device::WorkQueue& queue)
    : ProcessGroup({group.members().begin(), group.members().end()}, group.rank(), std::nullopt, uncounted_),
      place_(place),
      queue_(queue),
      first_sequence_((place.generation * kLanes + place.lane) * 2) {}

NcclChannel& NcclGroup::channel_of_all() {
  if (!all_)
    all_ = std::make_unique<NcclChannel>(place_.transport, members(), rank(), Tag{kChannelLane, first_sequence_});
  return *all_;
}

NcclChannel& NcclGroup::channel_between(int64_t from, int64_t to, uint16_t channel) {
  std::unique_ptr<NcclChannel>& made = between_[{from, to, channel}];
  if (!made) {
    const std::array<int64_t, 2> pair = {members()[static_cast<size_t>(from)], members()[static_cast<size_t>(to)]};
    made = std::make_unique<NcclChannel>(place_.transport, pair, rank() == from ? 0 : 1,
                                         Tag{kChannelLane, first_sequence_ + 1, channel});
  }
  return *made;
}

Handle NcclGroup::post(NcclChannel& channel, std::string_view kind, std::string_view what, int64_t bytes,
                       NcclChannel::Call call) {
  auto launch = channel.post(std::move(call), queue_.fence(),
                             fmt::format("{} of {} ({} bytes) over {}", kind, what, bytes, place_.name));
  return place_.communicator.post(std::make_shared<NcclOperation>(channel, queue_, std::move(launch)));
}

Handle NcclGroup::do_all_reduce(Tensor tensor, Reduction reduction, std::string_view what) {
  if (tensor.elements() == 0) return {};
  const ncclRedOp_t operation = reduction == Reduction::sum ? ncclSum : ncclMax;
  return post(channel_of_all(), "all-reduce", what, tensor.bytes(), [=](ncclComm_t comm, cudaStream_t stream) {
    const Buffer all(tensor);
    return ncclAllReduce(all.data, all.data, all.count, all.type, operation, comm, stream);
  });
}

Handle NcclGroup::do_reduce_scatter(Tensor input, std::span<const int64_t> counts, Tensor output,
                                    std::string_view what) {
  if (input.elements() == 0) return {};
  const auto call = [=, pieces = pieces_of(input, counts), equal = all_equal(counts)](ncclComm_t comm,
                                                                                      cudaStream_t stream) {
    const Buffer in(input), out(output);
    if (equal) return ncclReduceScatter(in.data, out.data, out.count, in.type, ncclSum, comm, stream);
    return grouped([&](const auto& include) {
      for (int root = 0; const Piece& piece : pieces) {
        if (piece.count > 0)
          include(ncclReduce(piece.data, out.data, piece.count, in.type, ncclSum, root, comm, stream));
        ++root;
      }
    });
  };
  return post(channel_of_all(), "reduce-scatter", what, input.bytes(), call);
}

Handle NcclGroup::do_all_gather(Tensor input, std::span<const int64_t> counts, Tensor output, std::string_view what) {
  if (output.elements() == 0) return {};
  const auto call = [=, own = rank(), pieces = pieces_of(output, counts), equal = all_equal(counts)](
                        ncclComm_t comm, cudaStream_t stream) {
    const Buffer in(input), out(output);
    if (equal) return ncclAllGather(in.data, out.data, in.count, in.type, comm, stream);
    return grouped([&](const auto& include) {
      for (int root = 0; const Piece& piece : pieces) {
        const std::byte* from = root == own ? in.data : piece.data;
        if (piece.count > 0) include(ncclBroadcast(from, piece.data, piece.count, in.type, root, comm, stream));
        ++root;
      }
    });
  };
  return post(channel_of_all(), "all-gather", what, output.bytes(), call);
}

Handle NcclGroup::do_broadcast(Tensor tensor, int64_t root, std::string_view what) {
  if (tensor.elements() == 0) return {};
  return post(channel_of_all(), "broadcast", what, tensor.bytes(), [=](ncclComm_t comm, cudaStream_t stream) {
    const Buffer all(tensor);
    return ncclBroadcast(all.data, all.data, all.count, all.type, narrow<int>(root), comm, stream);
  });
}

Handle NcclGroup::do_all_to_all(Tensor input, std::span<const int64_t> send_counts, Tensor output,
                                std::span<const int64_t> receive_counts, std::string_view what) {
  const auto call = [=, own = static_cast<size_t>(rank()), outgoing = pieces_of(input, send_counts),
                     incoming = pieces_of(output, receive_counts)](ncclComm_t comm, cudaStream_t stream) {
    const ncclDataType_t type = type_of(input.dtype());
    if (outgoing[own].bytes > 0 && outgoing[own].data != incoming[own].data)
      device::cuda::require_success(cudaMemcpyAsync(incoming[own].data, outgoing[own].data, outgoing[own].bytes,
                                                    cudaMemcpyDeviceToDevice, stream));
    return grouped([&](const auto& include) {
      for (size_t peer = 0; peer < outgoing.size(); ++peer) {
        if (peer == own) continue;
        const auto [from, sent, sent_bytes] = outgoing[peer];
        const auto [to, received, received_bytes] = incoming[peer];
        if (sent > 0) include(ncclSend(from, sent, type, narrow<int>(peer), comm, stream));
        if (received > 0) include(ncclRecv(to, received, type, narrow<int>(peer), comm, stream));
      }
    });
  };
  return post(channel_of_all(), "all-to-all", what, input.bytes(), call);
}

Handle NcclGroup::do_send(Tensor tensor, int64_t to, std::string_view what, uint16_t channel) {
  if (tensor.elements() == 0) return {};
  const auto call = [=](ncclComm_t comm, cudaStream_t stream) {
    const Buffer all(tensor);
    return ncclSend(all.data, all.count, all.type, 1, comm, stream);
  };
  return post(channel_between(rank(), to, channel), "send", what, tensor.bytes(), call);
}

Handle NcclGroup::do_receive(Tensor tensor, int64_t from, std::string_view what, uint16_t channel) {
  if (tensor.elements() == 0) return {};
  const auto call = [=](ncclComm_t comm, cudaStream_t stream) {
    const Buffer all(tensor);
    return ncclRecv(all.data, all.count, all.type, 0, comm, stream);
  };
  return post(channel_between(from, rank(), channel), "receive", what, tensor.bytes(), call);
}

namespace {

class NcclGroups : public DeviceGroups {
 public:
  explicit NcclGroups(device::WorkQueue& queue) : queue_(queue) {}

  ProcessGroup& twin_of(const ProcessGroup& group, const GroupPlace& place) override {
    std::unique_ptr<NcclGroup>& twin = twins_[place.lane];
    if (!twin) twin = std::make_unique<NcclGroup>(group, place, queue_);
    return *twin;
  }

 private:
  device::WorkQueue& queue_;
  std::map<uint8_t, std::unique_ptr<NcclGroup>> twins_;
};

}  // namespace

std::string nccl_version() {
  int version = 0;
  require_nccl(ncclGetVersion(&version), "its version");
  return fmt::format("NCCL {}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

std::unique_ptr<DeviceGroups> make_nccl_groups(device::WorkQueue& queue) { return std::make_unique<NcclGroups>(queue); }

}  // namespace quintet::comm
