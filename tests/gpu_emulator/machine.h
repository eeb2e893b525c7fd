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
#include <string>
#include <thread>
#include <vector>

#include "tests/gpu_emulator/include/emulated/host.h"

namespace quintet::gpu_emulator {

constexpr int kVersion = 13000;  // of CUDA, as it writes it

struct Operation {
  std::function<std::string()> run;    // empty, or a report
  std::function<bool()> ready;         // none: at once
  std::function<void()> reached = {};  // called once, as it comes to the head of its queue
};

}  // namespace quintet::gpu_emulator

// NOLINTBEGIN(readability-identifier-naming): CUDA's names
struct CUstream_st {
  int device = 0;
  std::thread::id owner;
  std::deque<quintet::gpu_emulator::Operation> queue;
  bool running = false;
};
struct CUevent_st {
  // Of the record that was asked for last: whether it happened.
  std::shared_ptr<bool> happened;
};
// NOLINTEND(readability-identifier-naming)

namespace quintet::gpu_emulator {

class Machine {
 public:
  static Machine& instance();

  int devices() const { return devices_; }
  void set_devices(int devices) { devices_ = devices; }
  // The CUDA that the driver offers, 0 without a driver; ten times the devices' compute capability.
  int driver() const { return driver_; }
  int capability() const { return capability_; }

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

 private:
  Machine();
  bool idle(const CUstream_st& stream) const { return stream.queue.empty() && !stream.running; }
  template <typename Predicate>
  void run_until(Predicate&& done);
  bool run_one(std::unique_lock<std::mutex>& lock);
  void abandon();
  void keep_fault(const std::string& report);

  std::atomic<int> devices_ = 1;
  const int driver_, capability_;
  std::atomic<uint64_t> seed_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<CUstream_st>> streams_;
  std::vector<std::unique_ptr<CUevent_st>> events_;
  std::string fault_;
};

}  // namespace quintet::gpu_emulator
