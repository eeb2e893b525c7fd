#pragma once

namespace quintet::kernels::cpu {

// What the kernels are compiled for: "AVX-512", "AVX2", "SSE", or "baseline" elsewhere than x86-64.
const char* instruction_set();

}  // namespace quintet::kernels::cpu
