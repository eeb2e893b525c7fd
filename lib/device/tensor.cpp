#include "lib/device/tensor.h"

#include <algorithm>

namespace quintet {

Shape::Shape(std::initializer_list<int64_t> sizes) : rank_(static_cast<int>(sizes.size())) {
  QUINTET_CHECK(sizes.size() <= kMaxRank, "{} dimensions", sizes.size());
  std::copy(sizes.begin(), sizes.end(), sizes_.begin());
}

int64_t Shape::elements() const {
  int64_t elements = 1;
  for (int i = 0; i < rank_; ++i) elements *= (*this)[i];
  return elements;
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int i = 0; i < shape.rank(); ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", shape[i]);
  return text + "]";
}

Tensor Tensor::reshaped(Shape shape) const {
  QUINTET_CHECK(shape.elements() == elements(), "{} as {}", to_string(shape_), to_string(shape));
  return {data_, dtype_, shape};
}

Tensor Tensor::rows(int64_t begin, int64_t count) const {
  QUINTET_CHECK(shape_.rank() >= 1 && begin >= 0 && count >= 0 && begin + count <= shape_[0], "rows {} to {} of {}",
                begin, begin + count, to_string(shape_));
  const int64_t row = shape_[0] == 0 ? 0 : elements() / shape_[0];
  Shape shape = shape_;
  switch (shape_.rank()) {
    case 1: shape = {count}; break;
    case 2: shape = {count, shape_[1]}; break;
    case 3: shape = {count, shape_[1], shape_[2]}; break;
    default: shape = {count, shape_[1], shape_[2], shape_[3]}; break;
  }
  return {static_cast<std::byte*>(data_) + begin * row * size_of(dtype_), dtype_, shape};
}

}  // namespace quintet
