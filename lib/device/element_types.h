// What each kind of tensor of a run is made of.
#pragma once

#include "lib/base/dtype.h"

namespace quintet::device {

// Under bf16 a rank computes in bf16 and keeps everything that sums up, or must not be rounded away, in fp32
// (Micikevicius et al. 2018). Under fp32 and fp64 all are one type, but for gradients where they are asked to be bf16.
struct ElementTypes {
  DType compute = DType::fp32;     // weights and activations
  DType statistics = DType::fp32;  // of norms, softmax and cross-entropy; tables of rotations
  DType gradients = DType::fp32;   // of parameters: accumulated and reduced in it
  DType state = DType::fp32;       // Adam's moments and master weights

  // Whether weights are roundings of master weights.
  bool has_masters() const { return compute != state; }
};

}  // namespace quintet::device
