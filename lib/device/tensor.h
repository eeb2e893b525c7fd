// A tensor is a non-owning, contiguous, row-major view; arenas and buffers own memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "lib/base/dtype.h"
#include "lib/base/error.h"

namespace quintet {

// Up to four dimensions, outermost first.
class Shape {
 public:
  static constexpr int kMaxRank = 4;

  Shape() = default;
  Shape(std::initializer_list<int64_t> sizes);

  int rank() const { return rank_; }
  int64_t operator[](int dimension) const { return sizes_[static_cast<size_t>(dimension)]; }
  int64_t elements() const;
  bool operator==(const Shape&) const = default;

 private:
  std::array<int64_t, kMaxRank> sizes_{};
  int rank_ = 0;
};

// "[4, 768]".
std::string to_string(const Shape& shape);

class Tensor {
 public:
  Tensor() = default;
  Tensor(void* data, DType dtype, Shape shape) : data_(data), dtype_(dtype), shape_(shape) {}

  // An absent tensor, for optional operands.
  explicit operator bool() const { return data_ != nullptr; }

  void* data() const { return data_; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int64_t size(int dimension) const { return shape_[dimension]; }
  int64_t elements() const { return shape_.elements(); }
  int64_t bytes() const { return elements() * size_of(dtype_); }

  // The elements as T, which must be the tensor's type.
  template <typename T>
  T* as() const {
    QUINTET_CHECK(data_ == nullptr || kDTypeOf<T> == dtype_, "a tensor of {} is read as {}", name_of(dtype_),
                  name_of(kDTypeOf<T>));
    return static_cast<T*>(data_);
  }
  template <typename T>
  std::span<T> span() const {
    return {as<T>(), static_cast<size_t>(elements())};
  }

  // The same elements under another shape of as many elements.
  Tensor reshaped(Shape shape) const;
  // `count` entries of the outermost dimension from `begin` on.
  Tensor rows(int64_t begin, int64_t count) const;

 private:
  void* data_ = nullptr;
  DType dtype_ = DType::fp32;
  Shape shape_;
};

}  // namespace quintet
