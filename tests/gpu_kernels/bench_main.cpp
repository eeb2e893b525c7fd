// quintet bench kernels for machines where quintet itself cannot be built: bench_gpu_kernels [bf16|fp32] [--tiny].
#include <cstdio>
#include <string_view>

#include "apps/quintet/bench_kernels.h"
#include "lib/base/error.h"

int main(int argc, char** argv) {
  quintet::DType dtype = quintet::DType::bf16;
  bool tiny = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--tiny") {
      tiny = true;
    } else if (word == "bf16" || word == "fp32") {
      dtype = word == "bf16" ? quintet::DType::bf16 : quintet::DType::fp32;
    } else {
      std::fprintf(stderr, "usage: bench_gpu_kernels [bf16|fp32] [--tiny]\n");
      return 2;
    }
  }
  try {
    return quintet::bench_kernels(dtype, tiny);
  } catch (const quintet::Error& problem) {
    std::fprintf(stderr, "error: %s\n", problem.what());
    return static_cast<int>(problem.code());
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "internal error: %s\n", problem.what());
    return 70;
  }
}
