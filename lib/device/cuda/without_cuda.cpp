// Builds without CUDA.
#include "lib/device/cuda/cuda_device.h"

namespace quintet::device {
namespace {
constexpr const char* kProblem =
    "this build has no CUDA; build with cmake --preset cuda where the CUDA toolkit is installed";
}

CudaSupport cuda_support() { return {.built_in = {}, .gpus = {}, .problem = kProblem}; }
int cuda_devices() { return 0; }

std::unique_ptr<Device> make_cuda_device(int, int) { fail(ExitCode::config, "{}", kProblem); }
void reach_gpus(Device&, int) { fail(ExitCode::config, "{}", kProblem); }
double cuda_seconds(Device&, const std::function<void()>&) { fail(ExitCode::config, "{}", kProblem); }

}  // namespace quintet::device
