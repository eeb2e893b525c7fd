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

// How many devices there are from now on; at first QUINTET_EMULATION_DEVICES, or 1.
void set_devices(int devices);

}  // namespace quintet::gpu_emulator
