// What tests ask of the emulator itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace quintet::gpu_emulator {

// The first fault since the last call, which is then forgotten, as is all that was still queued. Empty: none.
std::string take_report();

// The calling thread, and threads that begin after it, draw the order of streams and of a block's threads anew from
// this seed; at first it is QUINTET_EMULATION_SEED, or 0.
void set_seed(uint64_t seed);

// How many devices there are from now on; at first QUINTET_EMULATION_DEVICES, or 1.
void set_devices(int devices);

// Whether devices can be given access to each other's memory from now on; at first they can. None has it yet.
void set_peers(bool can_reach);

// Something that was put on a stream.
struct StreamUse {
  std::thread::id thread;     // of the host, that made the stream
  int stream = 0;             // numbered as they are made
  std::string what;           // a kernel's name, "copy", "fill", "product", "event", "wait", "call"
  std::vector<size_t> after;  // earlier uses that it follows at once: on its stream, or by an event
};
// Keeps what is put on streams from now on.
void record_streams();
// What was kept, in the order of the calls, and ends that.
std::vector<StreamUse> recorded_streams();
// Which uses are sure to happen before this one, or after it; itself is among them.
std::vector<bool> in_order_with(const std::vector<StreamUse>& uses, size_t use);

}  // namespace quintet::gpu_emulator
