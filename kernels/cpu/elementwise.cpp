#include "kernels/cpu/elementwise.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <span>
#include <type_traits>

#include "kernels/cpu/rows.h"

namespace quintet::kernels::cpu {
namespace {

// fp64 to bf16 through an fp32 rounded to odd, so that the second rounding does not round what the first rounded.
bfloat16 round_to_bfloat16(double value) {
  const float nearest = static_cast<float>(value);
  uint32_t bits = std::bit_cast<uint32_t>(nearest);
  const double back = static_cast<double>(nearest);
  if (back != value && std::isfinite(nearest)) {
    if (std::abs(back) > std::abs(value)) --bits;
    bits |= 1;
  }
  return bfloat16(std::bit_cast<float>(bits));
}

template <typename From, typename To>
To convert(From value) {
  if constexpr (std::is_same_v<From, bfloat16>) {
    return convert<float, To>(static_cast<float>(value));
  } else if constexpr (!std::is_same_v<To, bfloat16>) {
    return static_cast<To>(value);
  } else if constexpr (std::is_same_v<From, double>) {
    return round_to_bfloat16(value);
  } else {
    return bfloat16(value);
  }
}

}  // namespace

template <typename T>
void fill(int threads, int64_t elements, T value, T* to) {
  for_elements(threads, elements, [=](int64_t begin, int64_t end) { std::fill(to + begin, to + end, value); });
}

template <typename From, typename To>
void cast(int threads, int64_t elements, const From* from, To* to) {
  for_elements(threads, elements, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = convert<From, To>(from[i]);
  });
}

void copy_bytes(int threads, int64_t bytes, const void* from, void* to) {
  parallel_for(threads, bytes, int64_t{1} << 18, [=](int64_t begin, int64_t end) {
    std::memcpy(static_cast<std::byte*>(to) + begin, static_cast<const std::byte*>(from) + begin,
                static_cast<size_t>(end - begin));
  });
}

template <typename T>
void scale(int threads, int64_t elements, T factor, T* values) {
  for_elements(threads, elements, [=](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) values[i] *= factor;
  });
}

template <typename T>
bool all_finite(int threads, int64_t elements, const T* values) {
  std::atomic<bool> finite = true;
  for_elements(threads, elements, [&](int64_t begin, int64_t end) {
    // x - x is 0 for finite x and NaN otherwise; a NaN stays in the sum.
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = begin; i < end; ++i) sum += values[i] - values[i];
    if (sum != 0) finite = false;
  });
  return finite;
}

template <typename T>
void squared_norm(int threads, int64_t elements, const T* values, ExactSum& sum) {
  std::mutex mutex;
  for_elements(threads, elements, [&](int64_t begin, int64_t end) {
    ExactSum part;
    part.add_squares(std::span<const T>(values + begin, static_cast<size_t>(end - begin)));
    const std::lock_guard lock(mutex);
    sum.add(part);
  });
}

template void fill(int, int64_t, double, double*);
template void fill(int, int64_t, float, float*);
template void fill(int, int64_t, bfloat16, bfloat16*);
template void fill(int, int64_t, int64_t, int64_t*);
template void fill(int, int64_t, int32_t, int32_t*);
template void fill(int, int64_t, uint8_t, uint8_t*);

template void cast(int, int64_t, const double*, float*);
template void cast(int, int64_t, const double*, bfloat16*);
template void cast(int, int64_t, const float*, double*);
template void cast(int, int64_t, const float*, bfloat16*);
template void cast(int, int64_t, const bfloat16*, double*);
template void cast(int, int64_t, const bfloat16*, float*);

template void scale(int, int64_t, float, float*);
template void scale(int, int64_t, double, double*);
template bool all_finite(int, int64_t, const float*);
template bool all_finite(int, int64_t, const double*);
template void squared_norm(int, int64_t, const float*, ExactSum&);
template void squared_norm(int, int64_t, const double*, ExactSum&);

}  // namespace quintet::kernels::cpu
