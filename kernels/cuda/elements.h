// Elements of fp32 or bf16 in device memory as fp32 values in registers, one by one or 16 bytes at a time.
#pragma once

#include <cstdint>

#include "kernels/cuda/intrinsics.h"
#include "lib/base/dtype.h"

namespace quintet::kernels::cuda {

// Elements in 16 bytes.
template <typename T>
inline constexpr int kPacket = 16 / static_cast<int>(sizeof(T));

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(bfloat16 value) { return __uint_as_float(uint32_t{value.bits} << 16); }

template <typename T>
__device__ __forceinline__ T from_float(float value) {
  if constexpr (sizeof(T) == 4) {
    return value;
  } else {
    T result;
    result.bits = static_cast<uint16_t>(to_bfloat16_pair(value, 0.0F));
    return result;
  }
}

// N is 1 or kPacket<T>; then `from` is 16-byte aligned.
template <int N, typename T>
__device__ __forceinline__ void load(const T* from, float (&to)[N]) {
  static_assert(N == 1 || N == kPacket<T>);
  if constexpr (N == 1) {
    to[0] = to_float(*from);
  } else {
    const uint4 raw = *reinterpret_cast<const uint4*>(from);
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (N == 4) {
        to[i] = __uint_as_float(words[i]);
      } else {
        to[2 * i] = __uint_as_float(words[i] << 16);
        to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000U);
      }
    }
  }
}

// N is 1, or a multiple of 4; then `from` is 16-byte aligned.
template <int N>
__device__ __forceinline__ void load_floats(const float* from, float (&to)[N]) {
  static_assert(N == 1 || N % 4 == 0);
  if constexpr (N == 1) {
    to[0] = *from;
  } else {
#pragma unroll
    for (int k = 0; k < N; k += 4) {
      const float4 packet = *reinterpret_cast<const float4*>(from + k);
      to[k] = packet.x, to[k + 1] = packet.y, to[k + 2] = packet.z, to[k + 3] = packet.w;
    }
  }
}

// Rounds to nearest even.
template <int N, typename T>
__device__ __forceinline__ void store(const float (&from)[N], T* to) {
  static_assert(N == 1 || N == kPacket<T>);
  if constexpr (N == 1) {
    *to = from_float<T>(from[0]);
  } else {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (N == 4) {
        words[i] = __float_as_uint(from[i]);
      } else {
        words[i] = to_bfloat16_pair(from[2 * i], from[2 * i + 1]);
      }
    }
    *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

// What a later load of a stored value gives.
template <typename T>
__device__ __forceinline__ float rounded(float value) {
  return to_float(from_float<T>(value));
}

// Whether rows of `width` elements at these pointers, of which some may be null, can be read 16 bytes at a time.
template <typename T, typename... Rest>
bool in_packets(int64_t width, const T* first, const Rest*... rest) {
  const auto aligned = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; };
  return width % kPacket<T> == 0 && aligned(first) && (aligned(rest) && ...);
}

}  // namespace quintet::kernels::cuda
