// Checks of the shapes that operations are called with.
#pragma once

#include "lib/device/device.h"

namespace quintet::device {

inline void require(const Tensor& tensor, const Shape& shape, const char* name) {
  QUINTET_CHECK(tensor && tensor.shape() == shape, "{} is {}{}, expected {}", name, tensor ? "" : "absent ",
                to_string(tensor.shape()), to_string(shape));
}
inline void require_if_present(const Tensor& tensor, const Shape& shape, const char* name) {
  if (tensor) require(tensor, shape, name);
}
inline void require_rank(const Tensor& tensor, int rank, const char* name) {
  QUINTET_CHECK(tensor && tensor.shape().rank() == rank, "{} is {}{}, expected {} dimensions", name,
                tensor ? "" : "absent ", to_string(tensor.shape()), rank);
}

}  // namespace quintet::device
