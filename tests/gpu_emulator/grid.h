// Runs a kernel's grid on the calling thread of the host: the threads of a block are fibers, blocks follow one another.
#pragma once

#include <cstdint>
#include <string>

#include "tests/gpu_emulator/include/emulated/host.h"

namespace quintet::gpu_emulator {

inline constexpr size_t kMaxThreads = 1024;
inline constexpr size_t kDefaultSharedBytes = 48 * 1024;
inline constexpr size_t kMaxSharedBytes = 227 * 1024;

struct Grid {
  dim3 blocks, threads;
  size_t shared_bytes = 0;
  KernelCall kernel;
  uint64_t seed = 0;  // of the order in which a block's threads take their turns
  int device = 0;     // that runs it
};

// Empty, or the report of the first fault: what, where, which kernel, block and thread. After a fault nothing more of
// the grid runs.
std::string run_grid(const Grid& grid);

// The kernel's name as its source spells it, for a function of this executable; else its address.
std::string kernel_name(const void* kernel);

}  // namespace quintet::gpu_emulator
