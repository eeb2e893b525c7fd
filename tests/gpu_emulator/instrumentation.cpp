// Kernels are compiled with -fsanitize=thread,alignment,bounds and linked without the sanitizers' runtimes: what the
// compiler has them call is defined here. Each load and store tells where it goes, an address that its type does not
// allow and an index beyond an array stop the kernel. Outside a kernel loads and stores are free.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <fmt/core.h>

#include "tests/gpu_emulator/block.h"

using quintet::gpu_emulator::current_block;

namespace {
// `alignment` is what the type promises: a device has no slower path for an address that breaks it.
inline void check(const void* address, size_t bytes, bool write, size_t alignment = 1) {
  if (auto* block = current_block()) block->access(address, bytes, write, alignment);
}
}  // namespace

// NOLINTBEGIN(bugprone-reserved-identifier, readability-identifier-naming, bugprone-macro-parentheses): the compiler's
#define QUINTET_ACCESS(bytes)                                                                 \
  void __tsan_read##bytes(void* address) { check(address, bytes, false, bytes); }             \
  void __tsan_write##bytes(void* address) { check(address, bytes, true, bytes); }             \
  void __tsan_volatile_read##bytes(void* address) { check(address, bytes, false, bytes); }    \
  void __tsan_volatile_write##bytes(void* address) { check(address, bytes, true, bytes); }    \
  void __tsan_unaligned_read##bytes(void* address) { check(address, bytes, false); }          \
  void __tsan_unaligned_write##bytes(void* address) { check(address, bytes, true); }          \
  void __tsan_unaligned_volatile_read##bytes(void* address) { check(address, bytes, false); } \
  void __tsan_unaligned_volatile_write##bytes(void* address) { check(address, bytes, true); }

extern "C" {
QUINTET_ACCESS(1)
QUINTET_ACCESS(2)
QUINTET_ACCESS(4)
QUINTET_ACCESS(8)
QUINTET_ACCESS(16)
void __tsan_read_range(void* address, size_t bytes) { check(address, bytes, false); }
void __tsan_write_range(void* address, size_t bytes) { check(address, bytes, true); }
void* __tsan_memcpy(void* to, const void* from, size_t bytes) {
  check(from, bytes, false);
  check(to, bytes, true);
  return std::memcpy(to, from, bytes);
}
void* __tsan_memset(void* to, int value, size_t bytes) {
  check(to, bytes, true);
  return std::memset(to, value, bytes);
}
// Reference counts of launchers, which are instrumented with their kernels.
int32_t __tsan_atomic32_fetch_add(volatile int32_t* address, int32_t value, int) {
  return __atomic_fetch_add(address, value, __ATOMIC_SEQ_CST);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void*, void*) {}
void __tsan_vptr_read(void*) {}
}
#undef QUINTET_ACCESS

namespace {

// As the compilers lay them out.
struct Place {
  const char* file;
  uint32_t line, column;
};
struct TypeMismatch {
  Place place;
  const void* type;
  unsigned char alignment_bits, access;
};
struct OutOfBounds {
  Place place;
  const void* array_type;
  const void* index_type;
};

[[noreturn]] void stop(const Place& place, const std::string& what) {
  const std::string report = fmt::format("{} at {}:{}", what, place.file, place.line);
  if (auto* block = current_block()) block->fault(report);
  std::fprintf(stderr, "GPU emulator: outside a kernel: %s\n", report.c_str());
  std::abort();
}

}  // namespace

extern "C" {
void __ubsan_handle_type_mismatch_v1(const TypeMismatch* data, uintptr_t address) {
  stop(data->place, fmt::format("uses {:#x}, which is not {}-byte aligned", address, 1 << data->alignment_bits));
}
void __ubsan_handle_out_of_bounds(const OutOfBounds* data, uintptr_t index) {
  stop(data->place, fmt::format("uses element {} of a smaller array", static_cast<intptr_t>(index)));
}
}
// NOLINTEND(bugprone-reserved-identifier, readability-identifier-naming, bugprone-macro-parentheses)
