// One block in execution. Each thread is a fiber that runs until it waits: at the block's barrier or for lanes of its
// warp. A thread that faults leaves for the scheduler and is never resumed: kernels own nothing that needs unwinding.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <boost/context/detail/fcontext.hpp>

#include "tests/gpu_emulator/async_copies.h"
#include "tests/gpu_emulator/grid.h"
#include "tests/gpu_emulator/include/emulated/device.h"
#include "tests/gpu_emulator/shared_memory.h"

namespace quintet::gpu_emulator {

// What one thread of the host keeps from block to block.
struct Workspace {
  std::vector<std::byte*> stacks;
  SharedMemory shared;
  Workspace() = default;
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
};

class Block {
 public:
  Block(const Grid& grid, uint3 index, Workspace& workspace);
  // Empty, or a report.
  std::string run();

  // For the running thread:
  void wait_for_block(const char* file, int line);
  void meet(const char* operation, uint32_t mask, const void* in, void* out, MeetingFunction function, const char* file,
            int line);
  [[noreturn]] void fault(const std::string& what);
  // The running thread reads or writes; faults where it must not.
  void access(const void* address, size_t bytes, bool write, size_t alignment = 1, bool atomic = false);

  // Whether this is shared memory of the block.
  bool is_shared(const void* address) const { return workspace_.shared.contains(reinterpret_cast<uintptr_t>(address)); }
  AsyncCopies& copies() { return threads_[running_].copies; }

  uint32_t thread() const { return running_; }
  uint32_t warp() const { return running_ / 32; }
  uint32_t lanes(uint32_t warp) const;
  void* dynamic_shared_memory() const { return workspace_.shared.dynamic(); }
  // Lanes of the running thread's warp have seen each other's writes.
  void warp_synchronised() { workspace_.shared.end_warp_phase(warp()); }

 private:
  enum class State : uint8_t { fresh, ready, at_barrier, meeting, done };
  struct Thread {
    boost::context::detail::fcontext_t context = nullptr;
    std::byte* stack = nullptr;
    State state = State::fresh;
    const char* operation = "";
    const char* file = "";
    int line = 0;
    AsyncCopies copies;
  };
  // Lanes of a warp that come together for one operation.
  struct Meeting {
    const char* operation;
    uint32_t warp, mask, arrived = 0;
    std::array<const void*, 32> in{};
    std::array<void*, 32> out{};
  };

  static void enter(boost::context::detail::transfer_t from);
  void resume(uint32_t thread);
  void suspend(State state, const char* operation, const char* file, int line);
  void open_barrier();
  std::string describe(uint32_t thread) const;
  std::string place(uint32_t thread) const;
  void report_stuck();

  const Grid& grid_;
  uint3 index_;
  Workspace& workspace_;
  std::vector<Thread> threads_;
  std::vector<std::byte*> free_stacks_;
  std::vector<Meeting> meetings_;
  boost::context::detail::fcontext_t scheduler_ = nullptr;
  uint32_t running_ = 0;
  bool in_meeting_ = false;
  std::string report_;
};

// The block that the calling thread of the host runs, or null.
Block* current_block();

}  // namespace quintet::gpu_emulator
