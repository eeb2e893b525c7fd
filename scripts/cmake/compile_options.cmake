# One compile line for all of our code. Warnings are errors.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(QUINTET_CCACHE ccache)
if(QUINTET_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${QUINTET_CCACHE}")
endif()

add_library(quintet_options INTERFACE)
target_compile_options(quintet_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
  -Wno-missing-field-initializers)
# A machine that only tests kernels has whatever compiler it has.
if(NOT QUINTET_KERNEL_TESTS_ONLY)
  target_compile_options(quintet_options INTERFACE -Werror)
endif()
target_include_directories(quintet_options INTERFACE "${PROJECT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}/generated")

if(QUINTET_SANITIZE)
  # GCC 12 under sanitizers takes Catch's use of <regex> for a use of uninitialised memory.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(quintet_options INTERFACE -Wno-maybe-uninitialized)
  endif()
  add_compile_options(-fsanitize=${QUINTET_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${QUINTET_SANITIZE})
endif()

# GCC 12 warns wrongly about std::string's own copies (GCC bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(quintet_options INTERFACE -Wno-restrict)
endif()
