// A rank's end of the world: its groups, its operations in flight, its counters. One object a rank, whether the rank is
// a thread or a process.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/error.h"
#include "lib/comm/device_groups.h"
#include "lib/comm/process_group.h"
#include "lib/device/device.h"
#include "lib/mesh/mesh.h"

namespace quintet::comm {

class Transport;

// Where a rank lives.
struct Placement {
  int64_t rank = 0, world_size = 1;
  int64_t local_rank = 0, local_size = 1;  // among the ranks of its node
  int64_t local_cpus = 1;                  // that the ranks of its node may use, all together
  std::string node;                        // host name
  std::string launch;                      // "threads" | "MPI (Open MPI 4.1.4)" | "one process"
};

class Communicator {
 public:
  Communicator(Placement placement, std::unique_ptr<Transport> transport);
  ~Communicator();

  const Placement& placement() const { return placement_; }

  // Names ranks in reports and makes groups possible. There is one mesh.
  void set_mesh(const Mesh& mesh);
  const Mesh& mesh() const;
  // "rank 5 (dp 0, tp 1, pp 1)"; before set_mesh "rank 5".
  std::string label_of(int64_t rank) const;
  // Seconds that a wait may last without any operation of this rank moving on; 0 = for ever.
  void set_watchdog(double seconds);

  // Operands may lie in the memory of this queue's device from now on; null: no more. They travel by `groups`, the same
  // kind on all ranks, or where there are none as the transport's messages: an Error(config) where it has no way to.
  void set_queue(device::WorkQueue* queue, std::unique_ptr<DeviceGroups> groups = nullptr);

  // Whether messages may carry the memory of devices: those of threads may.
  bool carries_device_memory() const;

  // This rank's group along `axes`, made on first use. See ProcessGroup for booking.
  ProcessGroup& group(AxisSet axes, std::optional<Axis> booked_under);
  // Its block of `size` consecutive ranks along `axis`, as Mesh::block_of; one size an axis.
  ProcessGroup& block(Axis axis, int64_t size, std::optional<Axis> booked_under);
  // The first and the last rank along `axis`, as Mesh::ends_of; only these may ask for it.
  ProcessGroup& ends(Axis axis, std::optional<Axis> booked_under);
  // All ranks, not counted; usable before set_mesh.
  ProcessGroup& world();

  Traffic& traffic() { return traffic_; }

  // Moves posted operations on without blocking; throws when the world is aborting. Called between layers.
  void progress();
  // Waits for all operations posted so far.
  void drain();

 private:
  friend class Handle;
  friend class MessageGroup;
  friend class NcclGroup;

  Handle post(const std::shared_ptr<Operation>& operation);
  void poll_all();
  // Blocks until the operation has happened, moving on all others; or until its device can wait for it.
  enum class Until : uint8_t { joinable, happened };
  void wait(Operation& operation, Until until);
  // Gives all operations up: this rank is about to unwind.
  void withdraw_all();
  [[noreturn]] void fail_watchdog(const Operation& operation);
  // The group of `lane`, on first use from describe(): its name and members.
  template <typename Describe>
  ProcessGroup& group_on(uint8_t lane, std::optional<Axis> booked_under, const Describe& describe);

  Placement placement_;
  std::unique_ptr<Transport> transport_;
  std::optional<Mesh> mesh_;
  PerAxis<int64_t> block_sizes_;  // of the blocks asked for, 0 where none was
  double watchdog_seconds_ = 0;
  Traffic traffic_;
  std::vector<std::shared_ptr<Operation>> in_flight_;                                        // in order of posting
  std::map<std::pair<uint8_t, std::optional<Axis>>, std::unique_ptr<ProcessGroup>> groups_;  // by lane and booking
  std::unique_ptr<DeviceGroups> device_groups_;
  int64_t generation_ = 0;  // of the device groups: how many there have been
};

// While it lives, operands may lie in the device's memory.
class DeviceScope {
 public:
  DeviceScope(Communicator& communicator, device::Device& device, std::unique_ptr<DeviceGroups> groups = nullptr)
      : communicator_(communicator) {
    communicator.set_queue(device.queue(), std::move(groups));
  }
  ~DeviceScope() { communicator_.set_queue(nullptr); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  Communicator& communicator_;
};

// Runs `body` as `ranks` threads of this process and returns the process's exit code: 0, or that of the first cause,
// whose message is printed once on standard error. A failing rank ends the others' waits. ranks = 1 runs on the calling
// thread.
int run_thread_ranks(int64_t ranks, const std::function<void(Communicator&)>& body);

// "Open MPI 4.1.4", or "" in a build without MPI.
std::string mpi_version();
// Whether this process was started by mpirun or srun (or MPI finds a world of more than one).
bool launched_by_mpi();
// Runs `body` as this process's rank of the MPI world; same exit code on every rank, message printed once.
int run_mpi_rank(int* argc, char*** argv, const std::function<void(Communicator&)>& body);

}  // namespace quintet::comm
