// How kernels are launched, and how the status of every call of the CUDA runtime is read.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <utility>

#include "lib/base/integers.h"

namespace quintet::kernels::cuda {

// Throws a CheckFailure that names the place of the call and what the runtime says, unless `status` is success.
inline void require_success(cudaError_t status, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (status == cudaSuccess) [[likely]]
    return;
  const std::string text = cudaGetErrorString(status);
  cudaGetLastError();
  detail::check_failed(cudaGetErrorName(status), file, line, text);
}

// Blocks of a grid, and where the launch stands in the source.
struct GridSize {
  dim3 blocks;
  const char* file;
  int line;

  GridSize(int64_t count, const char* at_file = __builtin_FILE(), int at_line = __builtin_LINE())
      : blocks(narrow<unsigned>(count)), file(at_file), line(at_line) {}
  GridSize(dim3 size, const char* at_file = __builtin_FILE(), int at_line = __builtin_LINE())
      : blocks(size), file(at_file), line(at_line) {}
};

inline constexpr int64_t kUsualSharedBytes = 48 * 1024;

// kernel<<<grid, threads, shared_bytes, stream>>>(arguments...); an empty grid is not launched. More shared memory than
// the usual is asked for.
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), GridSize grid, unsigned threads, int64_t shared_bytes, cudaStream_t stream,
            Arguments&&... arguments) {
  if (grid.blocks.x == 0 || grid.blocks.y == 0 || grid.blocks.z == 0) return;
  if (shared_bytes > kUsualSharedBytes) {
    require_success(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, narrow<int>(shared_bytes)), grid.file,
        grid.line);
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = grid.blocks;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = narrow<size_t>(shared_bytes);
  config.stream = stream;
  require_success(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...), grid.file, grid.line);
}

}  // namespace quintet::kernels::cuda
