// Element types of tensors.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <utility>

#include "lib/base/error.h"

namespace quintet {

// Upper half of an IEEE fp32; arithmetic happens in fp32.
struct bfloat16 {
  uint16_t bits = 0;

  bfloat16() = default;
  // Round to nearest even; NaN stays NaN.
  explicit bfloat16(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    bits = static_cast<uint16_t>(std::isnan(value) ? (u >> 16) | 0x40U : (u + 0x7fffU + ((u >> 16) & 1U)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

enum class DType : uint8_t { fp64, fp32, bf16, i64, i32, u8 };

constexpr int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::fp64:
    case DType::i64: return 8;
    case DType::fp32:
    case DType::i32: return 4;
    case DType::bf16: return 2;
    case DType::u8: return 1;
  }
  return 0;
}

constexpr std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::fp64: return "fp64";
    case DType::fp32: return "fp32";
    case DType::bf16: return "bf16";
    case DType::i64: return "i64";
    case DType::i32: return "i32";
    case DType::u8: return "u8";
  }
  return "?";
}

template <typename T>
constexpr DType kDTypeOf = DType::u8;
template <>
inline constexpr DType kDTypeOf<double> = DType::fp64;
template <>
inline constexpr DType kDTypeOf<float> = DType::fp32;
template <>
inline constexpr DType kDTypeOf<bfloat16> = DType::bf16;
template <>
inline constexpr DType kDTypeOf<int64_t> = DType::i64;
template <>
inline constexpr DType kDTypeOf<int32_t> = DType::i32;

// Calls function.template operator()<T>() with the C++ type of dtype.
template <typename Function>
decltype(auto) visit_dtype(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::fp64: return function.template operator()<double>();
    case DType::fp32: return function.template operator()<float>();
    case DType::bf16: return function.template operator()<bfloat16>();
    case DType::i64: return function.template operator()<int64_t>();
    case DType::i32: return function.template operator()<int32_t>();
    case DType::u8: return function.template operator()<uint8_t>();
  }
  QUINTET_CHECK(false, "unknown dtype {}", static_cast<int>(dtype));
}

// The same for types that arithmetic happens in.
template <typename Function>
decltype(auto) visit_compute_type(DType dtype, Function&& function) {
  if (dtype == DType::fp64) return function.template operator()<double>();
  QUINTET_CHECK(dtype == DType::fp32, "{} is not a compute type of this device", name_of(dtype));
  return function.template operator()<float>();
}

// The same for types that weights and activations are stored in: those, and bf16.
template <typename Function>
decltype(auto) visit_storage_type(DType dtype, Function&& function) {
  if (dtype == DType::bf16) return function.template operator()<bfloat16>();
  return visit_compute_type(dtype, function);
}

}  // namespace quintet
