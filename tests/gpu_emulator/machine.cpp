#include "tests/gpu_emulator/machine.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "lib/base/random.h"
#include "tests/gpu_emulator/emulator.h"

namespace quintet::gpu_emulator {
namespace {

constexpr size_t kBacklog = 4096;  // operations that a queue may hold before some must run

uint64_t number_from_environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

template <typename T>
bool holds(const std::vector<std::unique_ptr<T>>& all, const T* one) {
  return std::any_of(all.begin(), all.end(), [=](const auto& held) { return held.get() == one; });
}

template <typename T>
bool remove_from(std::vector<std::unique_ptr<T>>& all, const T* one) {
  return std::erase_if(all, [=](const auto& held) { return held.get() == one; }) != 0;
}

struct Draws {
  uint64_t seed = 0, count = 0;
  bool seeded = false;
};
thread_local Draws draws;

}  // namespace

Machine::Machine()
    : devices_(static_cast<int>(number_from_environment("QUINTET_EMULATION_DEVICES", 1))),
      driver_(static_cast<int>(number_from_environment("QUINTET_EMULATION_DRIVER", kVersion))),
      capability_(static_cast<int>(number_from_environment("QUINTET_EMULATION_CAPABILITY", 90))),
      seed_(number_from_environment("QUINTET_EMULATION_SEED", 0)) {}

Machine& Machine::instance() {
  static Machine machine;
  return machine;
}

uint64_t Machine::draw() {
  if (!draws.seeded) draws = {seed_, 0, true};
  const PhiloxBlock block = philox(draws.seed, draws.count++, stream_of("emulation", "order"));
  return uint64_t{block[0]} << 32 | block[1];
}

cudaStream_t Machine::create_stream(int device) {
  const std::lock_guard lock(mutex_);
  streams_.push_back(std::make_unique<CUstream_st>());
  streams_.back()->device = device;
  streams_.back()->number = streams_made_++;
  streams_.back()->owner = std::this_thread::get_id();
  return streams_.back().get();
}

bool Machine::destroy_stream(cudaStream_t stream) {
  if (!is_stream(stream)) return false;
  synchronise(stream);
  const std::lock_guard lock(mutex_);
  return remove_from(streams_, stream);
}

bool Machine::is_stream(cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  return holds(streams_, stream);
}

cudaEvent_t Machine::create_event() {
  const std::lock_guard lock(mutex_);
  events_.push_back(std::make_unique<CUevent_st>());
  return events_.back().get();
}

bool Machine::destroy_event(cudaEvent_t event) {
  const std::lock_guard lock(mutex_);
  return remove_from(events_, event);
}

bool Machine::is_event(cudaEvent_t event) {
  const std::lock_guard lock(mutex_);
  return holds(events_, event);
}

void Machine::enqueue(cudaStream_t stream, Operation operation) {
  std::unique_lock lock(mutex_);
  if (!fault_.empty()) return;
  if (recording_) keep_use(*stream, operation);
  stream->queue.push_back(std::move(operation));
  changed_.notify_all();
  if (stream->queue.size() > kBacklog) run_one(lock);
}

void Machine::record(cudaEvent_t event, cudaStream_t stream) {
  auto happened = std::make_shared<bool>(false);
  {
    const std::lock_guard lock(mutex_);
    event->happened = happened;
    if (!fault_.empty()) *happened = true;
  }
  enqueue(stream, {.run =
                       [this, happened] {
                         const std::lock_guard lock(mutex_);
                         *happened = true;
                         return std::string();
                       },
                   .ready = {},
                   .what = "event"});
  const std::lock_guard lock(mutex_);
  event->use = stream->last_use;
}

void Machine::wait(cudaStream_t stream, cudaEvent_t event) {
  std::shared_ptr<bool> happened;
  std::optional<size_t> use;
  {
    const std::lock_guard lock(mutex_);
    happened = event->happened;
    use = event->use;
  }
  if (happened == nullptr) return;  // as on a device: an event that was never recorded holds nobody up
  enqueue(
      stream,
      {.run = [] { return std::string(); }, .ready = [happened] { return *happened; }, .what = "wait", .after = use});
}

void Machine::set_devices(int devices) {
  const std::lock_guard lock(mutex_);
  devices_ = devices;
  connected_.clear();
}

void Machine::set_peers(bool can_reach) {
  const std::lock_guard lock(mutex_);
  peers_ = can_reach;
  connected_.clear();
}

bool Machine::connect(int device, int peer) {
  const std::lock_guard lock(mutex_);
  return connected_.emplace(device, peer).second;
}

bool Machine::connected(int device, int peer) {
  const std::lock_guard lock(mutex_);
  return connected_.count({device, peer}) != 0;
}

void Machine::keep_use(CUstream_st& stream, const Operation& operation) {
  StreamUse use{.thread = stream.owner, .stream = stream.number, .what = operation.what, .after = {}};
  if (stream.last_use) use.after.push_back(*stream.last_use);
  if (operation.after) use.after.push_back(*operation.after);
  stream.last_use = uses_.size();
  uses_.push_back(std::move(use));
}

void Machine::start_recording() {
  const std::lock_guard lock(mutex_);
  recording_ = true;
  for (const auto& stream : streams_) stream->last_use.reset();
  for (const auto& event : events_) event->use.reset();
}

std::vector<StreamUse> Machine::end_recording() {
  const std::lock_guard lock(mutex_);
  recording_ = false;
  return std::exchange(uses_, {});
}

// Runs the head of one queue, this thread's own before others'. False if none may run.
bool Machine::run_one(std::unique_lock<std::mutex>& lock) {
  for (const auto& stream : streams_) {
    if (stream->running || stream->queue.empty() || !stream->queue.front().reached) continue;
    std::exchange(stream->queue.front().reached, nullptr)();
  }
  std::vector<CUstream_st*> own, others;
  for (const auto& stream : streams_) {
    if (stream->running || stream->queue.empty()) continue;
    const Operation& head = stream->queue.front();
    if (head.ready && !head.ready()) continue;
    (stream->owner == std::this_thread::get_id() ? own : others).push_back(stream.get());
  }
  const std::vector<CUstream_st*>& candidates = own.empty() ? others : own;
  if (candidates.empty()) return false;
  CUstream_st& stream = *candidates[draw() % candidates.size()];
  Operation operation = std::move(stream.queue.front());
  stream.queue.pop_front();
  stream.running = true;
  lock.unlock();
  const std::string report = operation.run();
  operation = {};
  lock.lock();
  stream.running = false;
  if (!report.empty()) keep_fault(report);
  changed_.notify_all();
  return true;
}

void Machine::keep_fault(const std::string& report) {
  if (!fault_.empty()) return;
  fault_ = report;
  std::fprintf(stderr, "GPU emulator: %s\n", report.c_str());
  abandon();
}

void Machine::report(const std::string& fault) {
  const std::lock_guard lock(mutex_);
  keep_fault(fault);
  changed_.notify_all();
}

template <typename Predicate>
void Machine::run_until(Predicate&& done) {
  std::unique_lock lock(mutex_);
  while (!done()) {
    if (!run_one(lock)) changed_.wait(lock);
  }
}

void Machine::synchronise(cudaStream_t stream) {
  run_until([this, stream] { return idle(*stream); });
}

void Machine::synchronise(cudaEvent_t event) {
  std::shared_ptr<bool> happened;
  {
    const std::lock_guard lock(mutex_);
    happened = event->happened;
  }
  run_until([happened] { return happened == nullptr || *happened; });
}

void Machine::synchronise_device(int device) {
  run_until([this, device] {
    return std::all_of(streams_.begin(), streams_.end(),
                       [this, device](const auto& stream) { return stream->device != device || idle(*stream); });
  });
}

bool Machine::query(cudaStream_t stream) {
  std::unique_lock lock(mutex_);
  if (!idle(*stream) && draw() % 2 == 0) run_one(lock);
  return idle(*stream);
}

bool Machine::query(cudaEvent_t event) {
  std::unique_lock lock(mutex_);
  const std::shared_ptr<bool> happened = event->happened;
  if (happened == nullptr) return true;
  if (!*happened && draw() % 2 == 0) run_one(lock);
  return *happened;
}

std::string Machine::fault() {
  const std::lock_guard lock(mutex_);
  return fault_;
}

void Machine::reset() {
  const std::lock_guard lock(mutex_);
  fault_.clear();
  abandon();
}

// Whoever waits for what is queued waits no more.
void Machine::abandon() {
  for (const auto& stream : streams_) stream->queue.clear();
  for (const auto& event : events_) {
    if (event->happened) *event->happened = true;
  }
}

void Machine::wake() {
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

std::string take_report() {
  std::string report = Machine::instance().fault();
  Machine::instance().reset();
  return report;
}

void set_devices(int devices) { Machine::instance().set_devices(devices); }

void set_peers(bool can_reach) { Machine::instance().set_peers(can_reach); }

void record_streams() { Machine::instance().start_recording(); }

std::vector<StreamUse> recorded_streams() { return Machine::instance().end_recording(); }

std::vector<bool> in_order_with(const std::vector<StreamUse>& uses, size_t use) {
  std::vector<bool> before(uses.size()), after(uses.size());
  before[use] = after[use] = true;
  for (size_t i = use + 1; i-- > 0;) {
    if (!before[i]) continue;
    for (const size_t earlier : uses[i].after) before[earlier] = true;
  }
  for (size_t i = use + 1; i < uses.size(); ++i)
    after[i] = std::any_of(uses[i].after.begin(), uses[i].after.end(), [&](size_t earlier) { return after[earlier]; });
  for (size_t i = 0; i < uses.size(); ++i) before[i] = before[i] || after[i];
  return before;
}

void set_seed(uint64_t seed) {
  draws = {seed, 0, true};
  Machine::instance().set_seed(seed);
}

}  // namespace quintet::gpu_emulator
