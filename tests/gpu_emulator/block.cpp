#include "tests/gpu_emulator/block.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include <fmt/core.h>

#include "lib/base/random.h"
#include "tests/gpu_emulator/machine.h"
#include "tests/gpu_emulator/memory.h"

thread_local constinit uint3 threadIdx{};
thread_local constinit uint3 blockIdx{};
thread_local constinit dim3 blockDim{};
thread_local constinit dim3 gridDim{};

namespace quintet::gpu_emulator {
namespace {

namespace context = boost::context::detail;

constexpr size_t kStackBytes = 64 * 1024;
constexpr size_t kGuardBytes = 4096;

thread_local constinit Block* running_block = nullptr;

uint32_t volume(const dim3& size) { return size.x * size.y * size.z; }

uint3 place_of(uint64_t index, const dim3& size) {
  return {static_cast<unsigned>(index % size.x), static_cast<unsigned>(index / size.x % size.y),
          static_cast<unsigned>(index / size.x / size.y)};
}

uint32_t bit(uint32_t lane) { return 1U << lane; }

// With an inaccessible page below, where a stack would run over.
std::byte* new_stack() {
  void* memory = mmap(nullptr, kStackBytes + kGuardBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, kGuardBytes, PROT_NONE) != 0) return nullptr;
  return static_cast<std::byte*>(memory) + kGuardBytes;
}

}  // namespace

Workspace::~Workspace() {
  for (std::byte* stack : stacks) munmap(stack - kGuardBytes, kStackBytes + kGuardBytes);
}

Block* current_block() { return running_block; }

Block::Block(const Grid& grid, uint3 index, Workspace& workspace)
    : grid_(grid),
      index_(index),
      workspace_(workspace),
      threads_(volume(grid.threads)),
      free_stacks_(workspace.stacks) {
  workspace_.shared.begin_block(grid.shared_bytes);
}

uint32_t Block::lanes(uint32_t warp) const {
  const size_t rest = threads_.size() - size_t{warp} * 32;
  return rest >= 32 ? 0xffffffffU : bit(static_cast<uint32_t>(rest)) - 1;
}

std::string Block::run() {
  running_block = this;
  blockIdx = index_;
  blockDim = grid_.threads;
  gridDim = grid_.blocks;
  const auto count = static_cast<uint32_t>(threads_.size());
  const uint64_t number = index_.x + uint64_t{grid_.blocks.x} * (index_.y + uint64_t{grid_.blocks.y} * index_.z);
  for (uint64_t round = 0; report_.empty(); ++round) {
    // Upwards or downwards by the seed: of two threads each goes first in some round.
    const bool upwards = philox(grid_.seed, round, number)[0] % 2 == 0;
    bool progress = false, left = false;
    for (uint32_t i = 0; i < count && report_.empty(); ++i) {
      const uint32_t thread = upwards ? i : count - 1 - i;
      const State state = threads_[thread].state;
      left |= state != State::done;
      if (state != State::fresh && state != State::ready) continue;
      resume(thread);
      progress = true;
    }
    if (!left) break;
    if (!progress) open_barrier();
  }
  running_block = nullptr;
  return report_;
}

void Block::enter(context::transfer_t from) {
  Block& block = *static_cast<Block*>(from.data);
  block.scheduler_ = from.fctx;
  block.grid_.kernel.invoke(block.grid_.kernel.call.get());
  block.threads_[block.running_].state = State::done;
  context::jump_fcontext(block.scheduler_, nullptr);
}

void Block::resume(uint32_t thread) {
  Thread& t = threads_[thread];
  running_ = thread;
  threadIdx = place_of(thread, grid_.threads);
  if (t.state == State::fresh) {
    if (free_stacks_.empty()) {
      std::byte* stack = new_stack();
      if (stack == nullptr) {
        report_ = "the host has no memory for the stacks of a block";
        return;
      }
      workspace_.stacks.push_back(stack);
      free_stacks_.push_back(stack);
    }
    t.stack = free_stacks_.back();
    free_stacks_.pop_back();
    t.context = context::make_fcontext(t.stack + kStackBytes, kStackBytes, enter);
  }
  t.state = State::ready;
  t.context = context::jump_fcontext(t.context, this).fctx;
  if (t.state == State::done) free_stacks_.push_back(t.stack);
}

void Block::suspend(State state, const char* operation, const char* file, int line) {
  Thread& t = threads_[running_];
  t.state = state;
  t.operation = operation;
  t.file = file;
  t.line = line;
  scheduler_ = context::jump_fcontext(scheduler_, nullptr).fctx;
}

void Block::wait_for_block(const char* file, int line) { suspend(State::at_barrier, "__syncthreads", file, line); }

void Block::meet(const char* operation, uint32_t mask, const void* in, void* out, MeetingFunction function,
                 const char* file, int line) {
  const uint32_t lane = running_ % 32, present = lanes(warp());
  if ((mask & bit(lane)) == 0) fault(fmt::format("{}: mask {:#010x} lacks lane {} itself", operation, mask, lane));
  if ((mask & ~present) != 0) {
    fault(
        fmt::format("{}: mask {:#010x} names lanes that the warp does not have ({:#010x})", operation, mask, present));
  }
  auto meeting = std::find_if(meetings_.begin(), meetings_.end(),
                              [&](const Meeting& m) { return m.warp == warp() && (m.mask & bit(lane)) != 0; });
  if (meeting == meetings_.end()) {
    meeting = meetings_.insert(meetings_.end(), Meeting{operation, warp(), mask});
  } else if (std::strcmp(meeting->operation, operation) != 0 || meeting->mask != mask) {
    const auto first = warp() * 32 + static_cast<uint32_t>(std::countr_zero(meeting->arrived));
    fault(
        fmt::format("{} with mask {:#010x} meets {} (mask {:#010x})", operation, mask, describe(first), meeting->mask));
  }
  meeting->arrived |= bit(lane);
  meeting->in[lane] = in;
  meeting->out[lane] = out;
  if (meeting->arrived != mask) {
    suspend(State::meeting, operation, file, line);
    return;
  }
  const Meeting complete = *meeting;
  meetings_.erase(meeting);
  if (function != nullptr) {
    in_meeting_ = true;  // reads and writes variables of all its lanes
    function(mask, complete.in.data(), complete.out.data());
    in_meeting_ = false;
  }
  for (uint32_t other = 0; other < 32; ++other) {
    if (other != lane && (mask & bit(other)) != 0) threads_[warp() * 32 + other].state = State::ready;
  }
}

void Block::fault(const std::string& what) {
  report_ = fmt::format("{}: {}", place(running_), what);
  context::jump_fcontext(scheduler_, nullptr);
  __builtin_unreachable();
}

void Block::access(const void* address, size_t bytes, bool write, size_t alignment, bool atomic) {
  if (in_meeting_) return;
  const auto at = reinterpret_cast<uintptr_t>(address);
  const auto stack = reinterpret_cast<uintptr_t>(threads_[running_].stack);
  if (at >= stack && at < stack + kStackBytes) return;
  const char* verb = write ? "writes" : "reads";
  if (at % alignment != 0) {
    fault(fmt::format("{} {} bytes at {}, which is not {}-byte aligned", verb, bytes, address, alignment));
  }
  const auto call = reinterpret_cast<uintptr_t>(grid_.kernel.call.get());
  if (at >= call && at < call + grid_.kernel.call_bytes) return;
  uint32_t other = 0;
  switch (workspace_.shared.access(at, bytes, running_, write, atomic, other)) {
    case SharedMemory::Verdict::fine: return;
    case SharedMemory::Verdict::outside:
      fault(fmt::format("{} byte {} of {} bytes of shared memory", verb,
                        static_cast<const std::byte*>(address) - static_cast<std::byte*>(dynamic_shared_memory()),
                        grid_.shared_bytes));
    case SharedMemory::Verdict::race:
      fault(fmt::format("{} shared memory in a race with {}", verb,
                        other < threads_.size() ? describe(other) : "several threads"));
    case SharedMemory::Verdict::elsewhere: break;
  }
  // Most accesses fall into few allocations.
  struct Remembered {
    Allocation allocation;
    uint64_t releases = ~uint64_t{0};
    int device = 0;
  };
  thread_local std::array<Remembered, 8> remembered;
  thread_local size_t next = 0;
  const uint64_t now = releases();
  for (const Remembered& r : remembered) {
    if (r.releases == now && r.device == grid_.device && r.allocation.holds(at, bytes)) return;
  }
  if (const std::string misuse = describe_misuse(verb, address, bytes); !misuse.empty()) fault(misuse);
  const Allocation allocation = *allocation_near(address);
  const int owner = allocation.kind == MemoryKind::pinned ? grid_.device : allocation.device;
  if (owner != grid_.device && !Machine::instance().connected(grid_.device, owner))
    fault(fmt::format("{} memory of device {}, to which device {} has no access", verb, owner, grid_.device));
  remembered[next++ % remembered.size()] = {allocation, now, grid_.device};
}

// Nobody can go on: opens the barrier if all wait there.
void Block::open_barrier() {
  uint32_t waiting = 0;
  for (uint32_t i = 0; i < threads_.size(); ++i) {
    if (threads_[i].state != State::at_barrier) continue;
    if (threads_[i].line != threads_[waiting].line && threads_[waiting].state == State::at_barrier)
      return report_stuck();
    waiting = i;
  }
  const bool all =
      std::all_of(threads_.begin(), threads_.end(), [](const Thread& t) { return t.state == State::at_barrier; });
  if (!all) return report_stuck();
  for (Thread& t : threads_) t.state = State::ready;
  workspace_.shared.end_phase();
}

void Block::report_stuck() {
  uint32_t first = 0;
  while (threads_[first].state == State::done) ++first;
  const auto differs = [&](const Thread& t) {
    return t.state != threads_[first].state || t.line != threads_[first].line ||
           std::strcmp(t.operation, threads_[first].operation) != 0;
  };
  // Lanes that wait for each other first name one of their own warp.
  uint32_t other = 0;
  const auto search = [&](uint32_t begin, uint32_t end) {
    for (uint32_t i = begin; i < end; ++i) {
      if (differs(threads_[i])) {
        other = i;
        return true;
      }
    }
    return false;
  };
  const auto count = static_cast<uint32_t>(threads_.size());
  const uint32_t begin = first / 32 * 32;
  if (!search(begin, std::min(count, begin + 32))) search(0, count);
  report_ = fmt::format("{}: divergence: waits in {} at {}:{}, but {}", place(first), threads_[first].operation,
                        threads_[first].file, threads_[first].line, describe(other));
}

std::string Block::describe(uint32_t thread) const {
  const Thread& t = threads_[thread];
  const uint3 at = place_of(thread, grid_.threads);
  std::string name = fmt::format("thread ({}, {}, {})", at.x, at.y, at.z);
  switch (t.state) {
    case State::done: return name + ", which has ended";
    case State::at_barrier:
    case State::meeting: return fmt::format("{}, which waits in {} at {}:{}", name, t.operation, t.file, t.line);
    default: return name;
  }
}

std::string Block::place(uint32_t thread) const {
  const uint3 at = place_of(thread, grid_.threads);
  return fmt::format("{}, block ({}, {}, {}), thread ({}, {}, {})", kernel_name(grid_.kernel.kernel), index_.x,
                     index_.y, index_.z, at.x, at.y, at.z);
}

std::string run_grid(const Grid& grid) {
  thread_local Workspace workspace;
  const uint64_t blocks = uint64_t{grid.blocks.x} * grid.blocks.y * grid.blocks.z;
  for (uint64_t i = 0; i < blocks; ++i) {
    Block block(grid, place_of(i, grid.blocks), workspace);
    if (std::string report = block.run(); !report.empty()) return report;
  }
  return {};
}

}  // namespace quintet::gpu_emulator
