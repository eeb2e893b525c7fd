// What the emulated runtime asks of the emulated NCCL.
#pragma once

#include <cuda_runtime.h>

namespace quintet::gpu_emulator {

// Reports a fault if this thread's open NCCL group holds calls for `stream`: they come after what `function` is about
// to do, whatever was meant.
void report_open_group(const char* function, cudaStream_t stream);

}  // namespace quintet::gpu_emulator
