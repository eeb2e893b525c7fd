# CUDA kernels in two guises, each a library of its own:
#   quintet_kernels_cuda           compiled by nvcc; in `all` with QUINTET_CUDA=ON, on demand with AUTO
#   quintet_kernels_cuda_emulated  the same sources compiled as C++ for tests/gpu_emulator, with QUINTET_GPU_EMULATION
set(QUINTET_CUDA AUTO CACHE STRING "Compile the CUDA kernels with nvcc: ON, OFF, or AUTO (on demand, where nvcc is found)")
set_property(CACHE QUINTET_CUDA PROPERTY STRINGS AUTO ON OFF)

if(QUINTET_KERNEL_TESTS_ONLY)
  set(QUINTET_CUDA ON)
endif()

# ThreadSanitizer's hooks are what the emulator itself lives on, and its fibers do not announce themselves to sanitizers.
if(QUINTET_TESTS AND NOT QUINTET_SANITIZE AND NOT QUINTET_KERNEL_TESTS_ONLY)
  option(QUINTET_GPU_EMULATION "Compile the CUDA kernels for the GPU emulator and test them on it" ON)
else()
  set(QUINTET_GPU_EMULATION OFF)
endif()

if(QUINTET_CUDA AND NOT QUINTET_SANITIZE)
  find_program(QUINTET_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATH_SUFFIXES bin PATHS /usr/local/cuda)
  if(QUINTET_NVCC)
    set(CMAKE_CUDA_COMPILER "${QUINTET_NVCC}")
    set(CMAKE_CUDA_ARCHITECTURES "80;90a;100" CACHE STRING "GPU architectures")
    if(QUINTET_CCACHE)
      set(CMAKE_CUDA_COMPILER_LAUNCHER "${QUINTET_CCACHE}")
    endif()
    enable_language(CUDA)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)  # which CMake 3.25 does not know of
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_EXTENSIONS OFF)
    option(QUINTET_NCCL "Ranks with a GPU each talk over NCCL, which must then be there when quintet starts" ON)
    if(QUINTET_NCCL)
      cmake_path(GET QUINTET_NVCC PARENT_PATH toolkit)
      find_library(QUINTET_NCCL_LIBRARY nccl HINTS "${toolkit}/../lib64")
      find_path(QUINTET_NCCL_INCLUDE nccl.h HINTS "${toolkit}/../include")
      if(QUINTET_CUDA STREQUAL "ON" AND NOT (QUINTET_NCCL_LIBRARY AND QUINTET_NCCL_INCLUDE))
        message(WARNING "no NCCL was found: GPUs of several processes cannot talk (QUINTET_NCCL=OFF silences this)")
      endif()
    endif()
  elseif(QUINTET_CUDA STREQUAL "AUTO")
    message(WARNING "no nvcc was found: the CUDA kernels are not compiled for a GPU (QUINTET_CUDA=OFF silences this)")
  else()
    message(FATAL_ERROR "QUINTET_CUDA=ON, but no nvcc was found: install the CUDA toolkit or set CUDA_HOME")
  endif()
endif()
