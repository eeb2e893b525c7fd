#include "lib/device/cuda/gpus.h"

#include <cublasLt.h>

#include <charconv>

#include <fmt/core.h>

#include "lib/device/cuda/cuda_device.h"
#include "lib/device/cuda/stream.h"

namespace quintet::device {
namespace cuda {
namespace {

constexpr int kLeastMajor = 8;  // compute capability: bf16 in tensor cores
constexpr std::string_view kArchitectures = QUINTET_CUDA_ARCHITECTURES;

std::string cuda_version(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

cudaDeviceProp properties_of(int ordinal) {
  cudaDeviceProp properties;
  require_success(cudaGetDeviceProperties(&properties, ordinal));
  return properties;
}

}  // namespace

bool runs_on(std::string_view architectures, int major, int minor) {
  constexpr std::string_view kPrefix = "sm_";
  bool any = architectures.find(kPrefix) == std::string_view::npos;  // the emulator's code is for no GPU
  for (size_t at = architectures.find(kPrefix); at != std::string_view::npos; at = architectures.find(kPrefix, at)) {
    at += kPrefix.size();
    int built = 0;
    const char* end = architectures.data() + architectures.size();
    const char* behind = std::from_chars(architectures.data() + at, end, built).ptr;
    const bool only_there = behind != end && *behind == 'a';
    any = any || (only_there ? built == 10 * major + minor : built <= 10 * major + minor);
  }
  return any;
}

std::string built_in() {
  int runtime = 0;
  require_success(cudaRuntimeGetVersion(&runtime));
  const size_t cublas = cublasLtGetVersion();
  return fmt::format("CUDA {} ({}), cuBLASLt {}.{}.{}", cuda_version(runtime), kArchitectures, cublas / 10000,
                     cublas % 10000 / 100, cublas % 100);
}

int visible_gpus(std::string& problem) {
  int driver = 0, runtime = 0, count = 0;
  require_success(cudaRuntimeGetVersion(&runtime));
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    cudaGetLastError();
    problem = "no NVIDIA driver is installed";
    return 0;
  }
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess) return count;
  cudaGetLastError();
  if (status == cudaErrorInsufficientDriver) {
    problem = fmt::format("the NVIDIA driver offers CUDA {}, which is too old for {}; update the driver",
                          cuda_version(driver), cuda_version(runtime));
  } else {
    problem = fmt::format("no GPU is visible ({})", cudaGetErrorString(status));
  }
  return 0;
}

std::string name_of_gpu(int ordinal) {
  const cudaDeviceProp properties = properties_of(ordinal);
  return fmt::format("{} (sm_{}{}, {:.0f} GB)", properties.name, properties.major, properties.minor,
                     static_cast<double>(properties.totalGlobalMem) / 1e9);
}

std::string problem_of_gpu(int ordinal) {
  const cudaDeviceProp properties = properties_of(ordinal);
  if (properties.major < kLeastMajor)
    return fmt::format("GPU {}, {}, is too old; sm_{}0 is the oldest that can be used", ordinal, name_of_gpu(ordinal),
                       kLeastMajor);
  if (!runs_on(kArchitectures, properties.major, properties.minor))
    return fmt::format("GPU {}, {}, cannot run this build, which is for {}; build with -DCMAKE_CUDA_ARCHITECTURES={}{}",
                       ordinal, name_of_gpu(ordinal), kArchitectures, properties.major, properties.minor);
  return {};
}

}  // namespace cuda

CudaSupport cuda_support() {
  CudaSupport support;
  support.built_in = cuda::built_in();
  const int visible = cuda::visible_gpus(support.problem);
  for (int ordinal = 0; ordinal < visible; ++ordinal) {
    // Ordinals stay what they are: nothing behind an old GPU is used.
    support.problem = cuda::problem_of_gpu(ordinal);
    if (!support.problem.empty()) break;
    support.gpus.push_back(cuda::name_of_gpu(ordinal));
  }
  return support;
}

int cuda_devices() { return static_cast<int>(cuda_support().gpus.size()); }

}  // namespace quintet::device
