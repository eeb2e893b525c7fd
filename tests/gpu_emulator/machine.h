// The fake machine: devices, streams and events. A stream is a queue; nothing runs until some thread of the host waits,
// and then heads of queues run one by one, drawn from a seed among those that events let go. So whatever the host or
// another stream forgot to wait for has, under some seed, not happened yet.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/gpu_emulator/emulator.h"
#include "tests/gpu_emulator/include/emulated/host.h"

namespace quintet::gpu_emulator {

constexpr int kVersion = 13000;  // of CUDA, as it writes it

struct Operation {
  std::function<std::string()> run;    // empty, or a report
  std::function<bool()> ready;         // none: at once
  std::function<void()> reached = {};  // called once, as it comes to the head of its queue
  std::string what = "call";           // for the record of uses
  std::optional<size_t> after = {};    // the recorded use that it waits for
};

}  // namespace quintet::gpu_emulator

// NOLINTBEGIN(readability-identifier-naming): CUDA's names
struct CUstream_st {
  int device = 0, number = 0;
  std::thread::id owner;
  std::optional<size_t> last_use;  // recorded
  std::deque<quintet::gpu_emulator::Operation> queue;
  bool running = false;
};
struct CUevent_st {
  // Of the record that was asked for last: whether it happened.
  std::shared_ptr<bool> happened;
  std::optional<size_t> use;  // that record, where uses are recorded
};
// NOLINTEND(readability-identifier-naming)

namespace quintet::gpu_emulator {

class Machine {
 public:
  static Machine& instance();

  int devices() const { return devices_; }
  // They have no access to each other's memory at first.
  void set_devices(int devices);
  // The CUDA that the driver offers, 0 without a driver; ten times the devices' compute capability.
  int driver() const { return driver_; }
  int capability() const { return capability_; }

  void set_peers(bool can_reach);
  bool can_reach(int device, int peer) const { return peers_ && device != peer; }
  // Gives kernels of `device` access to the memory of `peer`; false where they have it.
  bool connect(int device, int peer);
  bool connected(int device, int peer);

  cudaStream_t create_stream(int device);
  bool destroy_stream(cudaStream_t stream);
  bool is_stream(cudaStream_t stream);
  cudaEvent_t create_event();
  bool destroy_event(cudaEvent_t event);
  bool is_event(cudaEvent_t event);

  // Appends; after a fault nothing is appended and nothing runs any more.
  void enqueue(cudaStream_t stream, Operation operation);
  void record(cudaEvent_t event, cudaStream_t stream);
  void wait(cudaStream_t stream, cudaEvent_t event);
  // Run operations until all of a stream, all before an event, or all of a device's streams is done.
  void synchronise(cudaStream_t stream);
  void synchronise(cudaEvent_t event);
  void synchronise_device(int device);
  // Whether it is done; sometimes runs one operation, so that who asks often enough is told yes.
  bool query(cudaStream_t stream);
  bool query(cudaEvent_t event);

  // The first report since the last reset; empty when all is well.
  std::string fault();
  // A fault that a call of the host meets; the first stays.
  void report(const std::string& fault);
  // Forgets the fault and all that is queued.
  void reset();

  // A number from this thread's sequence, which begins with the seed.
  uint64_t draw();
  // Of threads that have not drawn yet.
  void set_seed(uint64_t seed) { seed_ = seed; }
  // What another thread of the host does may have made an operation ready.
  void wake();

  bool recording() const { return recording_; }
  void start_recording();
  std::vector<StreamUse> end_recording();

 private:
  Machine();
  bool idle(const CUstream_st& stream) const { return stream.queue.empty() && !stream.running; }
  template <typename Predicate>
  void run_until(Predicate&& done);
  bool run_one(std::unique_lock<std::mutex>& lock);
  void abandon();
  void keep_use(CUstream_st& stream, const Operation& operation);
  void keep_fault(const std::string& report);

  std::atomic<int> devices_ = 1;
  const int driver_, capability_;
  std::atomic<bool> peers_ = true;
  std::atomic<uint64_t> seed_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<CUstream_st>> streams_;
  std::vector<std::unique_ptr<CUevent_st>> events_;
  int streams_made_ = 0;
  std::set<std::pair<int, int>> connected_;  // device, peer
  std::atomic<bool> recording_ = false;
  std::vector<StreamUse> uses_;
  std::string fault_;
};

}  // namespace quintet::gpu_emulator
