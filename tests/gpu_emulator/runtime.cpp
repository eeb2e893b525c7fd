// The CUDA runtime's functions over the fake machine.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include <fmt/core.h>

#include "tests/gpu_emulator/grid.h"
#include "tests/gpu_emulator/include/cuda_runtime.h"
#include "tests/gpu_emulator/machine.h"
#include "tests/gpu_emulator/memory.h"
#include "tests/gpu_emulator/nccl_groups.h"

namespace {

using namespace quintet::gpu_emulator;

constexpr size_t kDeviceBytes = size_t{64} << 30;

struct LastError {
  cudaError_t code = cudaSuccess;
  std::string text;
};
thread_local LastError last_error;
thread_local int current_device = 0;

Machine& machine() { return Machine::instance(); }

cudaError_t refuse(cudaError_t code, std::string text) {
  last_error = {code, std::move(text)};
  return code;
}

// cudaSuccess, or the fault that some operation ran into: it stays.
cudaError_t status() {
  std::string fault = machine().fault();
  if (fault.empty()) return cudaSuccess;
  return refuse(cudaErrorIllegalAddress, std::move(fault));
}

cudaError_t refuse_handle(const char* function, const char* what) {
  return refuse(cudaErrorInvalidResourceHandle, fmt::format("{}: {}", function, what));
}

// Empty if the stream can be used.
std::string stream_misuse(cudaStream_t stream) {
  if (stream == nullptr) return "the default stream is not used here";
  return machine().is_stream(stream) ? "" : "no such stream";
}

struct SharedLimits {
  std::mutex mutex;
  std::map<const void*, size_t> bytes;
};
SharedLimits& shared_limits() {
  static SharedLimits limits;
  return limits;
}

bool registered(const void* address) { return allocation_near(address).has_value(); }

}  // namespace

namespace quintet::gpu_emulator {

cudaError_t launch(const cudaLaunchConfig_t& config, KernelCall call) {
  if (const std::string misuse = stream_misuse(config.stream); !misuse.empty()) {
    return refuse_handle("cudaLaunchKernelEx", misuse.c_str());
  }
  const dim3 g = config.gridDim, b = config.blockDim;
  const auto threads = uint64_t{b.x} * b.y * b.z;
  const bool grid_fits = g.x > 0 && g.y > 0 && g.z > 0 && g.x <= 0x7fffffffU && g.y <= 65535 && g.z <= 65535;
  const bool block_fits = threads > 0 && threads <= kMaxThreads && b.z <= 64;
  if (!grid_fits || !block_fits) {
    return refuse(cudaErrorInvalidConfiguration,
                  fmt::format("{}: a grid of ({}, {}, {}) blocks of ({}, {}, {}) threads", kernel_name(call.kernel),
                              g.x, g.y, g.z, b.x, b.y, b.z));
  }
  size_t limit = kDefaultSharedBytes;
  {
    SharedLimits& limits = shared_limits();
    const std::lock_guard lock(limits.mutex);
    if (const auto found = limits.bytes.find(call.kernel); found != limits.bytes.end()) limit = found->second;
  }
  if (config.dynamicSmemBytes > limit) {
    return refuse(cudaErrorInvalidValue, fmt::format("{}: {} bytes of shared memory where {} are allowed",
                                                     kernel_name(call.kernel), config.dynamicSmemBytes, limit));
  }
  Grid grid{g, b, config.dynamicSmemBytes, std::move(call), machine().draw(), config.stream->device};
  std::string name = machine().recording() ? kernel_name(grid.kernel.kernel) : std::string();
  machine().enqueue(config.stream,
                    {.run = [grid = std::move(grid)] { return run_grid(grid); }, .ready = {}, .what = std::move(name)});
  return status();
}

cudaError_t set_shared_limit(const void* kernel, int bytes) {
  if (bytes < 0 || static_cast<size_t>(bytes) > kMaxSharedBytes) {
    return refuse(cudaErrorInvalidValue, fmt::format("{}: {} bytes of shared memory", kernel_name(kernel), bytes));
  }
  SharedLimits& limits = shared_limits();
  const std::lock_guard lock(limits.mutex);
  limits.bytes[kernel] = static_cast<size_t>(bytes);
  return cudaSuccess;
}

cudaError_t name_of_kernel(const char** name, const void* kernel) {
  thread_local std::string text;
  text = kernel_name(kernel);
  *name = text.c_str();
  return cudaSuccess;
}

}  // namespace quintet::gpu_emulator

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidDevicePointer: return "cudaErrorInvalidDevicePointer";
    case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorPeerAccessUnsupported: return "cudaErrorPeerAccessUnsupported";
    case cudaErrorPeerAccessAlreadyEnabled: return "cudaErrorPeerAccessAlreadyEnabled";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
  }
  return "unknown error";
}

const char* cudaGetErrorString(cudaError_t error) {
  return error == last_error.code && !last_error.text.empty() ? last_error.text.c_str() : cudaGetErrorName(error);
}

cudaError_t cudaPeekAtLastError() {
  const cudaError_t fault = status();
  return fault == cudaSuccess ? last_error.code : fault;
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = cudaPeekAtLastError();
  last_error.code = cudaSuccess;
  return error;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = machine().driver();
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  if (machine().driver() < kVersion) return refuse(cudaErrorInsufficientDriver, "the emulated driver is too old");
  *count = machine().devices();
  return *count > 0 ? cudaSuccess : refuse(cudaErrorNoDevice, "no CUDA-capable device is emulated");
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= machine().devices()) {
    return refuse(cudaErrorInvalidDevice, fmt::format("cudaSetDevice: {} of {} devices", device, machine().devices()));
  }
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= machine().devices()) return refuse(cudaErrorInvalidDevice, "no such device");
  *properties = {};
  std::strcpy(properties->name, "emulated GPU");
  properties->totalGlobalMem = kDeviceBytes;
  properties->sharedMemPerBlock = kDefaultSharedBytes;
  properties->sharedMemPerBlockOptin = kMaxSharedBytes;
  properties->maxThreadsPerBlock = static_cast<int>(kMaxThreads);
  properties->warpSize = warpSize;
  properties->major = machine().capability() / 10;
  properties->minor = machine().capability() % 10;
  properties->multiProcessorCount = 4;
  properties->pciBusID = device + 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp properties;
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, device); error != cudaSuccess) return error;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = properties.maxThreadsPerBlock; return cudaSuccess;
    case cudaDevAttrMultiProcessorCount: *value = properties.multiProcessorCount; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor: *value = properties.major; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor: *value = properties.minor; return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(properties.sharedMemPerBlockOptin);
      return cudaSuccess;
  }
  return refuse(cudaErrorInvalidValue, "cudaDeviceGetAttribute: an attribute that is not emulated");
}

cudaError_t cudaDeviceSynchronize() {
  machine().synchronise_device(current_device);
  return status();
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  const int devices = machine().devices();
  if (std::min(device, peer) < 0 || std::max(device, peer) >= devices)
    return refuse(cudaErrorInvalidDevice,
                  fmt::format("cudaDeviceCanAccessPeer: {} and {} of {} devices", device, peer, devices));
  *can = machine().can_reach(device, peer) ? 1 : 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  int can = 0;
  if (const cudaError_t error = cudaDeviceCanAccessPeer(&can, current_device, peer); error != cudaSuccess) return error;
  if (can == 0)
    return refuse(cudaErrorPeerAccessUnsupported,
                  fmt::format("device {} cannot reach device {}", current_device, peer));
  return machine().connect(current_device, peer)
             ? cudaSuccess
             : refuse(cudaErrorPeerAccessAlreadyEnabled,
                      fmt::format("device {} reaches device {} already", current_device, peer));
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *total_bytes = kDeviceBytes;
  *free_bytes = kDeviceBytes - std::min(kDeviceBytes, device_bytes_in_use());
  return cudaSuccess;
}

namespace {

cudaError_t allocate_into(void** memory, size_t bytes, MemoryKind kind) {
  *memory = nullptr;
  if (bytes == 0) return status();
  const bool fits = kind == MemoryKind::pinned || device_bytes_in_use() + bytes <= kDeviceBytes;
  if (fits) *memory = allocate(bytes, kind, current_device);
  if (*memory == nullptr) return refuse(cudaErrorMemoryAllocation, fmt::format("no room for {} bytes", bytes));
  return status();
}

cudaError_t free_memory(const char* function, void* memory, MemoryKind kind) {
  if (memory == nullptr) return status();
  const std::string misuse = release(memory, kind);
  return misuse.empty() ? status() : refuse(cudaErrorInvalidValue, fmt::format("{}: {}", function, misuse));
}

// Empty, or what is wrong with the memory that an operation names. Pageable host memory has no registered range.
std::string range_misuse(const char* what, const void* memory, size_t bytes, bool on_device) {
  if (on_device || registered(memory)) return describe_misuse(what, memory, bytes);
  return {};
}

}  // namespace

cudaError_t cudaMalloc(void** memory, size_t bytes) { return allocate_into(memory, bytes, MemoryKind::device); }
cudaError_t cudaFree(void* memory) { return free_memory("cudaFree", memory, MemoryKind::device); }
cudaError_t cudaMallocHost(void** memory, size_t bytes) { return allocate_into(memory, bytes, MemoryKind::pinned); }
cudaError_t cudaFreeHost(void* memory) { return free_memory("cudaFreeHost", memory, MemoryKind::pinned); }

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (const std::string misuse = stream_misuse(stream); !misuse.empty()) {
    return refuse_handle("cudaMemcpyAsync", misuse.c_str());
  }
  if (bytes == 0) return status();
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  const auto misuse = [=](const void* source) {
    std::string report = range_misuse("cudaMemcpyAsync writes", to, bytes, to_device);
    if (report.empty()) report = range_misuse("cudaMemcpyAsync reads", source, bytes, from_device);
    return report;
  };
  if (const std::string report = misuse(from); !report.empty()) return refuse(cudaErrorInvalidValue, report);
  const bool pageable_source = !from_device && !registered(from), pageable_target = !to_device && !registered(to);
  if (pageable_source) {
    // As the runtime does: pageable memory is read before the call returns.
    const auto* begin = static_cast<const std::byte*>(from);
    machine().enqueue(stream, {.run =
                                   [=, copy = std::vector<std::byte>(begin, begin + bytes)] {
                                     std::string report = range_misuse("cudaMemcpyAsync writes", to, bytes, to_device);
                                     if (report.empty()) std::memcpy(to, copy.data(), bytes);
                                     return report;
                                   },
                               .ready = {},
                               .what = "copy"});
  } else {
    machine().enqueue(stream, {.run =
                                   [=] {
                                     std::string report = misuse(from);
                                     if (report.empty()) std::memmove(to, from, bytes);
                                     return report;
                                   },
                               .ready = {},
                               .what = "copy"});
  }
  // And written before it returns.
  if (pageable_target) machine().synchronise(stream);
  return status();
}

cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  if (const std::string misuse = stream_misuse(stream); !misuse.empty()) {
    return refuse_handle("cudaMemsetAsync", misuse.c_str());
  }
  if (bytes == 0) return status();
  const auto misuse = [=] { return describe_misuse("cudaMemsetAsync writes", memory, bytes); };
  if (const std::string report = misuse(); !report.empty()) return refuse(cudaErrorInvalidValue, report);
  machine().enqueue(stream, {.run =
                                 [=] {
                                   std::string report = misuse();
                                   if (report.empty()) std::memset(memory, value, bytes);
                                   return report;
                                 },
                             .ready = {},
                             .what = "fill"});
  return status();
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  if (flags != cudaStreamNonBlocking) {
    return refuse(cudaErrorInvalidValue, "a stream that waits for the default stream");
  }
  *stream = machine().create_stream(current_device);
  return status();
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return machine().destroy_stream(stream) ? status() : refuse_handle("cudaStreamDestroy", "no such stream");
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (const std::string misuse = stream_misuse(stream); !misuse.empty()) {
    return refuse_handle("cudaStreamSynchronize", misuse.c_str());
  }
  report_open_group("cudaStreamSynchronize", stream);
  machine().synchronise(stream);
  return status();
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (const std::string misuse = stream_misuse(stream); !misuse.empty()) {
    return refuse_handle("cudaStreamQuery", misuse.c_str());
  }
  const bool done = machine().query(stream);
  const cudaError_t fault = status();
  return fault != cudaSuccess || done ? fault : cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (const std::string misuse = stream_misuse(stream); !misuse.empty()) {
    return refuse_handle("cudaStreamWaitEvent", misuse.c_str());
  }
  if (!machine().is_event(event)) return refuse_handle("cudaStreamWaitEvent", "no such event");
  machine().wait(stream, event);
  return status();
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  if (const std::string misuse = stream_misuse(stream); !misuse.empty()) {
    return refuse_handle("cudaLaunchHostFunc", misuse.c_str());
  }
  machine().enqueue(stream, {.run =
                                 [=] {
                                   function(data);
                                   return std::string();
                                 },
                             .ready = {}});
  return status();
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = machine().create_event();
  return status();
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return machine().destroy_event(event) ? status() : refuse_handle("cudaEventDestroy", "no such event");
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (const std::string misuse = stream_misuse(stream); !misuse.empty()) {
    return refuse_handle("cudaEventRecord", misuse.c_str());
  }
  if (!machine().is_event(event)) return refuse_handle("cudaEventRecord", "no such event");
  report_open_group("cudaEventRecord", stream);
  machine().record(event, stream);
  return status();
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (!machine().is_event(event)) return refuse_handle("cudaEventQuery", "no such event");
  const bool done = machine().query(event);
  const cudaError_t fault = status();
  return fault != cudaSuccess || done ? fault : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (!machine().is_event(event)) return refuse_handle("cudaEventSynchronize", "no such event");
  machine().synchronise(event);
  return status();
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 0;  // nothing here says how long a device would take
  return status();
}
