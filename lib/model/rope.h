// Rotary position embedding in the half-split form (Su et al. 2021), with Llama 3's frequency scaling.
#pragma once

#include "lib/config/config.h"
#include "lib/device/device.h"
#include "lib/device/memory.h"

namespace quintet::model {

// Cosine and sine of position * frequency, [S, D/2] each; angles are computed in fp32, under fp64 in fp64. Absent where
// positions are not rotary.
class RopeTable {
 public:
  RopeTable() = default;
  RopeTable(device::Device& device, device::MemoryLedger& ledger, const config::Model& config, DType dtype);

  Tensor cosine() const { return cosine_; }
  Tensor sine() const { return sine_; }

 private:
  device::Buffer buffer_;
  Tensor cosine_, sine_;
};

}  // namespace quintet::model
