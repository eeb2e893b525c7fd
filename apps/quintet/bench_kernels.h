// What each operation of the CUDA device reaches of what the GPU can do.
#pragma once

#include "lib/base/dtype.h"

namespace quintet {

// Times every operation of GPU 0's table in bf16 or fp32 and prints a line each: bytes moved and their rate as a share
// of a copy's from device to device, or FLOPs and their rate as a share of the best plain product's. Operands are 256
// MiB large, beyond any cache; `tiny` ones show that the operations work, on the emulator or under compute-sanitizer,
// and no times. Error(config) without a GPU.
int bench_kernels(DType dtype, bool tiny);

}  // namespace quintet
