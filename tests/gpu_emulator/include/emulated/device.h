// What a thread of a kernel sees: its place, barriers, warp collectives, atomics and arithmetic.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "emulated/types.h"

// NOLINTBEGIN(readability-identifier-naming): CUDA's names
extern thread_local constinit uint3 threadIdx;
extern thread_local constinit uint3 blockIdx;
extern thread_local constinit dim3 blockDim;
extern thread_local constinit dim3 gridDim;
inline constexpr int warpSize = 32;

namespace quintet::gpu_emulator {

// The calling thread waits until all of its block have come here.
void wait_for_block(const char* file, int line);

// The calling lane waits until all lanes of `mask` have come to the same operation; the last one computes for all:
// in[lane] and out[lane] are what each lane passed, set for the lanes of the mask.
using MeetingFunction = void (*)(uint32_t mask, const void* const* in, void* const* out);
void meet(const char* operation, uint32_t mask, const void* in, void* out, MeetingFunction function, const char* file,
          int line);
// Lanes that meet in __syncwarp see what the others wrote to shared memory.
void wait_for_warp(uint32_t mask, const char* file, int line);

uint32_t lane_of_thread();
uint32_t lanes_of_warp();  // as a mask: the last warp of a block may be short

// Stops the kernel with a report. Called in a kernel; never returns.
[[noreturn]] void fault(const char* what);

template <typename T>
struct ShuffleInput {
  T value;
  uint32_t source;
};

template <typename T>
T shuffle(const char* operation, uint32_t mask, T value, uint32_t source, const char* file, int line) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  const ShuffleInput<T> input{value, source};
  T result{};
  meet(
      operation, mask, &input, &result,
      [](uint32_t lanes, const void* const* in, void* const* out) {
        for (uint32_t lane = 0; lane < 32; ++lane) {
          if ((lanes >> lane & 1U) == 0) continue;
          const uint32_t from = static_cast<const ShuffleInput<T>*>(in[lane])->source;
          if ((lanes >> from & 1U) == 0) fault("a shuffle reads a lane outside its mask");
          *static_cast<T*>(out[lane]) = static_cast<const ShuffleInput<T>*>(in[from])->value;
        }
      },
      file, line);
  return result;
}

// The source lane of a shuffle within segments of `width` lanes; a source outside the segment is the lane itself.
inline uint32_t within_segment(uint32_t lane, int64_t source, int width) {
  const int64_t first = lane / static_cast<uint32_t>(width) * static_cast<uint32_t>(width);
  return source < first || source >= first + width ? lane : static_cast<uint32_t>(source);
}

enum class Update : uint8_t { add, bits_or, minimum, maximum, exchange, compare_exchange };
// Returns what was there. For int, unsigned and unsigned long long.
template <typename T>
T update_atomically(Update update, T* address, T value, T compare);

uint32_t ballot(const char* operation, uint32_t mask, bool predicate, const char* file, int line);
uint32_t match_any(uint32_t mask, uint64_t value, const char* file, int line);

}  // namespace quintet::gpu_emulator

#define QUINTET_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(QUINTET_SITE) { quintet::gpu_emulator::wait_for_block(file, line); }
inline void __syncwarp(unsigned mask = 0xffffffffU, QUINTET_SITE) {
  quintet::gpu_emulator::wait_for_warp(mask, file, line);
}

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, QUINTET_SITE) {
  const uint32_t lane = quintet::gpu_emulator::lane_of_thread(), segment = static_cast<uint32_t>(width);
  return quintet::gpu_emulator::shuffle("__shfl_sync", mask, value,
                                        lane / segment * segment + static_cast<uint32_t>(source) % segment, file, line);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, QUINTET_SITE) {
  const uint32_t lane = quintet::gpu_emulator::lane_of_thread();
  // A source in an earlier segment may be read, one in a later segment may not.
  const uint32_t source = lane ^ static_cast<uint32_t>(lane_mask);
  const uint32_t end = (lane / static_cast<uint32_t>(width) + 1) * static_cast<uint32_t>(width);
  return quintet::gpu_emulator::shuffle("__shfl_xor_sync", mask, value, source < end ? source : lane, file, line);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, QUINTET_SITE) {
  const uint32_t lane = quintet::gpu_emulator::lane_of_thread();
  const uint32_t source = quintet::gpu_emulator::within_segment(lane, int64_t{lane} + delta, width);
  return quintet::gpu_emulator::shuffle("__shfl_down_sync", mask, value, source, file, line);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, QUINTET_SITE) {
  const uint32_t lane = quintet::gpu_emulator::lane_of_thread();
  const uint32_t source = quintet::gpu_emulator::within_segment(lane, int64_t{lane} - delta, width);
  return quintet::gpu_emulator::shuffle("__shfl_up_sync", mask, value, source, file, line);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, QUINTET_SITE) {
  return quintet::gpu_emulator::ballot("__ballot_sync", mask, predicate != 0, file, line);
}
inline int __any_sync(unsigned mask, int predicate, QUINTET_SITE) {
  return quintet::gpu_emulator::ballot("__any_sync", mask, predicate != 0, file, line) != 0 ? 1 : 0;
}
inline int __all_sync(unsigned mask, int predicate, QUINTET_SITE) {
  return quintet::gpu_emulator::ballot("__all_sync", mask, predicate != 0, file, line) == mask ? 1 : 0;
}
template <typename T>
unsigned __match_any_sync(unsigned mask, T value, QUINTET_SITE) {
  static_assert(sizeof(T) <= 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return quintet::gpu_emulator::match_any(mask, bits, file, line);
}
#undef QUINTET_SITE

// Atomics on integers; there are none on floats, whose sums would depend on the order.
template <typename T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  return quintet::gpu_emulator::update_atomically(quintet::gpu_emulator::Update::add, address, value, T{});
}
template <typename T>
T atomicOr(T* address, std::type_identity_t<T> value) {
  return quintet::gpu_emulator::update_atomically(quintet::gpu_emulator::Update::bits_or, address, value, T{});
}
template <typename T>
T atomicMin(T* address, std::type_identity_t<T> value) {
  return quintet::gpu_emulator::update_atomically(quintet::gpu_emulator::Update::minimum, address, value, T{});
}
template <typename T>
T atomicMax(T* address, std::type_identity_t<T> value) {
  return quintet::gpu_emulator::update_atomically(quintet::gpu_emulator::Update::maximum, address, value, T{});
}
template <typename T>
T atomicExch(T* address, std::type_identity_t<T> value) {
  return quintet::gpu_emulator::update_atomically(quintet::gpu_emulator::Update::exchange, address, value, T{});
}
template <typename T>
T atomicCAS(T* address, std::type_identity_t<T> compare, std::type_identity_t<T> value) {
  return quintet::gpu_emulator::update_atomically(quintet::gpu_emulator::Update::compare_exchange, address, value,
                                                  compare);
}
inline void __threadfence() {}
inline void __threadfence_block() {}

template <typename T>
T __ldg(const T* address) {
  return *address;
}

inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline int __float_as_int(float value) { return std::bit_cast<int>(value); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(uint64_t{a} * b >> 32); }
inline int __popc(unsigned value) { return std::popcount(value); }
inline int __clz(int value) { return std::countl_zero(static_cast<unsigned>(value)); }
inline int __ffs(int value) { return value == 0 ? 0 : std::countr_zero(static_cast<unsigned>(value)) + 1; }
inline float rsqrtf(float value) { return 1.0F / std::sqrt(value); }
inline float __expf(float value) { return std::exp(value); }
inline float __logf(float value) { return std::log(value); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fsqrt_rn(float value) { return std::sqrt(value); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
template <typename A, typename B>
std::common_type_t<A, B> min(A a, B b) {
  return b < a ? b : a;
}
template <typename A, typename B>
std::common_type_t<A, B> max(A a, B b) {
  return a < b ? b : a;
}
// NOLINTEND(readability-identifier-naming)
