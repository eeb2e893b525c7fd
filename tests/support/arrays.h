// Tensors with their own memory, filled from a seed, for tests of operations.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "lib/base/random.h"
#include "lib/device/tensor.h"

namespace quintet::testing {

template <typename T>
class Array {
 public:
  // Zeros. The first element lies `offset` elements behind a 64-byte boundary.
  explicit Array(Shape shape, int64_t offset = 0)
      : shape_(shape), memory_(static_cast<size_t>(shape.elements() + offset) + 64 / sizeof(T)), offset_(offset) {}

  // A copy lies as far behind a boundary, wherever its memory begins.
  Array(const Array& other) : Array(other.shape_, other.offset_) { *this = other; }
  Array& operator=(const Array& other) {
    QUINTET_CHECK(shape_ == other.shape_, "{} becomes {}", to_string(shape_), to_string(other.shape_));
    std::copy_n(other.data(), other.size(), data());
    return *this;
  }

  // Standard normal values times `scale`.
  static Array random(Shape shape, uint64_t seed, double scale = 1, int64_t offset = 0) {
    Array array(shape, offset);
    for (int64_t i = 0; i < shape.elements(); ++i) {
      array[i] = static_cast<T>(scale * normal(seed, static_cast<uint64_t>(i), 0));
    }
    return array;
  }
  static Array of(Shape shape, std::span<const T> values, int64_t offset = 0) {
    Array array(shape, offset);
    for (size_t i = 0; i < values.size(); ++i) array[static_cast<int64_t>(i)] = values[i];
    return array;
  }

  T* data() const {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    return const_cast<T*>(memory_.data()) + (address % 64 == 0 ? 0 : (64 - address % 64) / sizeof(T)) + offset_;
  }
  T& operator[](int64_t i) { return data()[i]; }
  const T& operator[](int64_t i) const { return data()[i]; }
  int64_t size() const { return shape_.elements(); }
  std::span<T> span() const { return {data(), static_cast<size_t>(size())}; }
  Tensor tensor() const { return {data(), kDTypeOf<T>, shape_}; }
  operator Tensor() const { return tensor(); }  // NOLINT: an array stands for its tensor

 private:
  Shape shape_;
  std::vector<T> memory_;
  int64_t offset_;
};

// A bound on what rounding may do to sums of some hundred terms around 1.
template <typename T>
constexpr double kRounding = sizeof(T) == 4 ? 1e-5 : 1e-13;

// The largest |a - b| over max(1, |b|); NaN where either is.
template <typename A, typename B>
double difference(const Array<A>& a, const Array<B>& b) {
  double worst = 0;
  for (int64_t i = 0; i < a.size(); ++i) {
    const double expected = static_cast<double>(b[i]);
    const double error = std::abs(static_cast<double>(a[i]) - expected) / std::fmax(1.0, std::abs(expected));
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

template <typename T>
double dot(const Array<T>& a, const Array<T>& b) {
  double sum = 0;
  for (int64_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

template <typename T>
bool same_bits(const Array<T>& a, const Array<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), static_cast<size_t>(a.size()) * sizeof(T)) == 0;
}

}  // namespace quintet::testing
