#include "kernels/cpu/elementwise.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <span>

#include "kernels/cpu/rows.h"

namespace quintet::kernels::cpu {

template <typename T>
void fill(int threads, int64_t elements, T value, T* to) {
  for_elements(threads, elements, [=](int64_t begin, int64_t end) { std::fill(to + begin, to + end, value); });
}

template <typename From, typename To>
void cast(int threads, int64_t elements, const From* from, To* to) {
  for_elements(threads, elements, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = round_to<To>(widen(from[i]));
  });
}

void copy_bytes(int threads, int64_t bytes, const void* from, void* to) {
  parallel_for(threads, bytes, int64_t{1} << 18, [=](int64_t begin, int64_t end) {
    std::memcpy(static_cast<std::byte*>(to) + begin, static_cast<const std::byte*>(from) + begin,
                static_cast<size_t>(end - begin));
  });
}

void transpose_rows(int threads, int64_t outer, int64_t inner, int64_t bytes, const void* from, void* to) {
  parallel_for(threads, outer * inner, 1024, [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t source = row % outer * inner + row / outer;
      std::memcpy(static_cast<std::byte*>(to) + row * bytes, static_cast<const std::byte*>(from) + source * bytes,
                  static_cast<size_t>(bytes));
    }
  });
}

template <typename T>
void scale(int threads, int64_t elements, Arithmetic<T> factor, T* values) {
  for_elements(threads, elements, [=](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) values[i] = round_to<T>(widen(values[i]) * factor);
  });
}

template <typename T>
bool all_finite(int threads, int64_t elements, const T* values) {
  std::atomic<bool> finite = true;
  for_elements(threads, elements, [&](int64_t begin, int64_t end) {
    // x - x is 0 for finite x and NaN otherwise; a NaN stays in the sum.
    Arithmetic<T> sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = begin; i < end; ++i) sum += widen(values[i]) - widen(values[i]);
    if (sum != 0) finite = false;
  });
  return finite;
}

namespace {

template <typename T>
void add_squares(std::span<const T> values, ExactSum& sum) {
  sum.add_squares(values);
}
void add_squares(std::span<const bfloat16> values, ExactSum& sum) {
  std::array<float, 1024> wide;
  for (size_t begin = 0; begin < values.size(); begin += wide.size()) {
    const size_t count = std::min(wide.size(), values.size() - begin);
#pragma omp simd
    for (size_t i = 0; i < count; ++i) wide[i] = widen(values[begin + i]);
    sum.add_squares(std::span<const float>(wide.data(), count));
  }
}

}  // namespace

template <typename T>
void squared_norm(int threads, int64_t elements, const T* values, ExactSum& sum) {
  std::mutex mutex;
  for_elements(threads, elements, [&](int64_t begin, int64_t end) {
    ExactSum part;
    add_squares(std::span<const T>(values + begin, static_cast<size_t>(end - begin)), part);
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

template void scale<bfloat16>(int, int64_t, float, bfloat16*);
template void scale<float>(int, int64_t, float, float*);
template void scale<double>(int, int64_t, double, double*);
template bool all_finite(int, int64_t, const bfloat16*);
template bool all_finite(int, int64_t, const float*);
template bool all_finite(int, int64_t, const double*);
template void squared_norm(int, int64_t, const bfloat16*, ExactSum&);
template void squared_norm(int, int64_t, const float*, ExactSum&);
template void squared_norm(int, int64_t, const double*, ExactSum&);

}  // namespace quintet::kernels::cpu
