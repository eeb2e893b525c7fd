#include "kernels/cpu/instruction_set.h"

namespace quintet::kernels::cpu {

const char* instruction_set() {
#if defined(__AVX512F__)
  return "AVX-512";
#elif defined(__AVX2__)
  return "AVX2";
#elif defined(__SSE2__)
  return "SSE";
#else
  return "baseline";
#endif
}

}  // namespace quintet::kernels::cpu
