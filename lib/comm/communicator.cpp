#include "lib/comm/communicator.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <numeric>
#include <thread>

#include <fmt/format.h>

#include "lib/comm/message_group.h"
#include "lib/comm/transport.h"

namespace quintet::comm {
namespace {

struct GroupDescription {
  std::string name;  // appears in reports
  std::vector<int64_t> members;
};

// Between questions to a device.
void rest(int64_t rounds) {
  constexpr int64_t kYields = 200;
  if (rounds < kYields) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

uint8_t lane_of(uint8_t first, Axis axis) { return static_cast<uint8_t>(first + static_cast<uint8_t>(axis)); }

}  // namespace

void Operation::join() {
  if (strand_) strand_->join();
}

bool Operation::joined() const { return !strand_ || strand_->joined(); }

bool Operation::happened() { return poll() && (!strand_ || strand_->happened()); }

bool Operation::silent() { return strand_ && strand_->on_device() && poll(); }

bool Handle::done() const {
  if (!operation_) return true;
  communicator_->progress();
  if (!operation_->poll()) return false;
  operation_->join();
  return true;
}

void Handle::wait() {
  if (!operation_) return;
  communicator_->wait(*operation_, Communicator::Until::joinable);
  operation_->join();
  operation_.reset();
}

void Handle::host_wait() {
  if (!operation_) return;
  communicator_->wait(*operation_, Communicator::Until::happened);
  operation_->join();
  operation_.reset();
}

Communicator::Communicator(Placement placement, std::unique_ptr<Transport> transport)
    : placement_(std::move(placement)), transport_(std::move(transport)) {
  set_rank_label(placement_.world_size > 1 ? label_of(placement_.rank) : "");
}

Communicator::~Communicator() {
  withdraw_all();
  set_rank_label("");
}

void Communicator::set_mesh(const Mesh& mesh) {
  if (mesh_ == mesh) return;
  QUINTET_CHECK(!mesh_, "the ranks have another mesh already");
  QUINTET_CHECK(mesh.world_size() == placement_.world_size, "a mesh of {} for {} ranks", mesh.world_size(),
                placement_.world_size);
  mesh_ = mesh;
  if (placement_.world_size > 1) set_rank_label(label_of(placement_.rank));
}

const Mesh& Communicator::mesh() const {
  QUINTET_CHECK(mesh_, "no mesh is set");
  return *mesh_;
}

std::string Communicator::label_of(int64_t rank) const {
  return mesh_ ? mesh_->label_of(rank) : fmt::format("rank {}", rank);
}

void Communicator::set_watchdog(double seconds) { watchdog_seconds_ = seconds; }

bool Communicator::carries_device_memory() const { return transport_->carries_device_memory(); }

void Communicator::set_queue(device::WorkQueue* queue, std::unique_ptr<DeviceGroups> groups) {
  if (queue != nullptr && placement_.world_size > 1 && !groups && !transport_->carries_device_memory())
    fail(ExitCode::config,
         "device.kind: processes that share a GPU, or that have no NCCL, cannot exchange its memory; start one process "
         "with --ranks {}, no more processes on a node than it has GPUs, or choose cpu",
         placement_.world_size);
  Memory& memory = transport_->memory();
  if (memory.queue() != nullptr) {
    if (std::uncaught_exceptions() > 0) {
      withdraw_all();
    } else {
      drain();
    }
    memory.queue()->while_host_waits({});
  }
  memory.use(queue);
  device_groups_ = std::move(groups);
  // What the device waits for may be waiting for this rank's progress; and the world may end meanwhile.
  if (!device_groups_) return;
  ++generation_;
  queue->while_host_waits([this] { progress(); });
}

template <typename Describe>
ProcessGroup& Communicator::group_on(uint8_t lane, std::optional<Axis> booked_under, const Describe& describe) {
  std::unique_ptr<ProcessGroup>& group = groups_[{lane, booked_under}];
  if (!group) {
    GroupDescription made = describe();
    const auto own = std::find(made.members.begin(), made.members.end(), placement_.rank);
    QUINTET_CHECK(own != made.members.end(), "{} is no member of {}", label_of(placement_.rank), made.name);
    const auto place = own - made.members.begin();
    group = std::make_unique<MessageGroup>(*this, *transport_, lane, std::move(made.name), std::move(made.members),
                                           place, booked_under, traffic_);
  }
  return *group;
}

ProcessGroup& Communicator::group(AxisSet axes, std::optional<Axis> booked_under) {
  return group_on(axes.mask(), booked_under, [&] {
    return GroupDescription{name_of(axes), mesh().group_of(placement_.rank, axes)};
  });
}

ProcessGroup& Communicator::block(Axis axis, int64_t size, std::optional<Axis> booked_under) {
  // Blocks of an axis share a lane, which must not name two groups of the same pair of ranks.
  int64_t& known = block_sizes_[axis];
  QUINTET_CHECK(known == 0 || known == size, "blocks of {} and of {} on axis {}", known, size, name_of(axis));
  ProcessGroup& group = group_on(lane_of(kBlockLane, axis), booked_under, [&] {
    return GroupDescription{fmt::format("{} block of {}", name_of(axis), size),
                            mesh().block_of(placement_.rank, axis, size)};
  });
  known = size;
  return group;
}

ProcessGroup& Communicator::ends(Axis axis, std::optional<Axis> booked_under) {
  return group_on(lane_of(kEndsLane, axis), booked_under, [&] {
    return GroupDescription{fmt::format("{} ends", name_of(axis)), mesh().ends_of(placement_.rank, axis)};
  });
}

ProcessGroup& Communicator::world() {
  return group_on(kWorldLane, std::nullopt, [&] {
    std::vector<int64_t> members(static_cast<size_t>(placement_.world_size));
    std::iota(members.begin(), members.end(), int64_t{0});
    return GroupDescription{"all ranks", std::move(members)};
  });
}

Handle Communicator::post(const std::shared_ptr<Operation>& operation) {
  if (!operation->poll()) {
    in_flight_.push_back(operation);
  } else if (operation->joined()) {
    return {};
  }
  // The last handle is gone. While an exception unwinds the operands die next; else they are handed on next, in the
  // device's order.
  const auto abandon = [this, operation](Operation*) {
    if (std::uncaught_exceptions() > 0) return withdraw_all();
    QUINTET_CHECK(operation->joined(), "nobody waited for {}", operation->describe());
  };
  return {*this, std::shared_ptr<Operation>(operation.get(), abandon)};
}

void Communicator::progress() {
  try {
    transport_->progress();
    poll_all();
  } catch (...) {
    withdraw_all();
    throw;
  }
}

void Communicator::poll_all() {
  for (auto& operation : in_flight_)
    if (operation->poll()) operation.reset();
  std::erase(in_flight_, nullptr);
}

void Communicator::wait(Operation& operation, Until until) {
  using Clock = std::chrono::steady_clock;
  Clock::time_point last_movement = Clock::now();
  int64_t moves = transport_->moves();
  for (int64_t rounds = 0;; ++rounds) {
    const uint64_t events = transport_->events();
    progress();
    if (until == Until::happened ? operation.happened() : operation.joinable()) return;
    if (transport_->moves() != moves) {
      moves = transport_->moves();
      last_movement = Clock::now();
      rounds = 0;
    } else if (watchdog_seconds_ > 0 &&
               std::chrono::duration<double>(Clock::now() - last_movement).count() > watchdog_seconds_) {
      fail_watchdog(operation);
    }
    if (operation.silent()) {
      rest(rounds);
    } else {
      transport_->nap(events, rounds);
    }
  }
}

void Communicator::fail_watchdog(const Operation& operation) {
  std::string report =
      fmt::format("{} waited {:g} s for {}", label_of(placement_.rank), watchdog_seconds_, operation.describe());
  for (const auto& other : in_flight_)
    if (other.get() != &operation) report += fmt::format("\n  also in flight: {}", other->describe());
  withdraw_all();
  throw Error(ExitCode::communication, report);
}

void Communicator::drain() {
  while (!in_flight_.empty()) {
    const std::shared_ptr<Operation> first = in_flight_.front();
    wait(*first, Until::happened);
  }
}

void Communicator::withdraw_all() {
  if (in_flight_.empty()) return;
  const auto operations = std::move(in_flight_);
  in_flight_.clear();
  for (const auto& operation : operations)
    if (operation) operation->withdraw();
  transport_->halt();
}

}  // namespace quintet::comm
