// What tests ask of the emulator itself.
#pragma once

#include <cstdint>
#include <string>

namespace quintet::gpu_emulator {

// The first fault since the last call, which is then forgotten, as is all that was still queued. Empty: none.
std::string take_report();

// The calling thread, and threads that begin after it, draw the order of streams and of a block's threads anew from
// this seed; at first it is QUINTET_EMULATION_SEED, or 0.
void set_seed(uint64_t seed);

}  // namespace quintet::gpu_emulator
