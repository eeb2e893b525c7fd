# Every outside library, found here and nowhere else. All are Debian 12 packages, listed in scripts/setup.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(CLI11 REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)

# oneDNN's own CMake package asks for OpenCL; the library alone is what we need.
find_library(QUINTET_DNNL dnnl)
find_path(QUINTET_DNNL_INCLUDE oneapi/dnnl/dnnl.h)
add_library(quintet_dnnl INTERFACE)
if(QUINTET_DNNL AND QUINTET_DNNL_INCLUDE AND NOT QUINTET_SANITIZE MATCHES "thread")
  target_link_libraries(quintet_dnnl INTERFACE "${QUINTET_DNNL}")
  target_include_directories(quintet_dnnl SYSTEM INTERFACE "${QUINTET_DNNL_INCLUDE}")
  target_compile_definitions(quintet_dnnl INTERFACE QUINTET_HAS_DNNL=1)
endif()

# ThreadSanitizer does not know OpenMP's runtime: then lib/base/parallel.cpp starts plain threads, and products are ours.
add_library(quintet_openmp INTERFACE)
if(NOT QUINTET_SANITIZE MATCHES "thread")
  find_package(OpenMP REQUIRED COMPONENTS CXX)
  target_link_libraries(quintet_openmp INTERFACE OpenMP::OpenMP_CXX)
else()
  target_compile_options(quintet_openmp INTERFACE -fopenmp-simd)
endif()

if(QUINTET_MPI)
  find_package(MPI REQUIRED COMPONENTS C)
endif()
if(QUINTET_TESTS)
  find_package(Catch2 2 REQUIRED)
endif()

# The CUDA runtime, linked statically: what is built starts on a machine without a driver.
if(CMAKE_CUDA_COMPILER)
  find_package(CUDAToolkit REQUIRED)
  add_library(quintet_cudart INTERFACE)
  target_link_libraries(quintet_cudart INTERFACE CUDA::cudart_static)
  target_include_directories(quintet_cudart SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
endif()

# The GPU emulator's fibers.
if(QUINTET_GPU_EMULATION)
  find_package(Boost REQUIRED COMPONENTS context)
  add_library(quintet_boost_context INTERFACE)
  target_link_libraries(quintet_boost_context INTERFACE Boost::context)
endif()
