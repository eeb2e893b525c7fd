// The flat numbering of a rank's trained parameters, cut into buckets, and buffers that hold a value for each of its
// elements or only for those that this rank owns.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/device/memory.h"
#include "lib/parallel/parameter.h"

namespace quintet::parallel {

// Elements of the flat numbering.
struct Range {
  int64_t begin = 0, count = 0;
  int64_t end() const { return begin + count; }
};

// A run of the numbering that is reduced and gathered as a whole. Every parameter in it starts at a multiple of 64
// elements, and its end is padded to a multiple of lcm(ranks that share the reduction, 128), so that it falls into
// equal pieces for them. Experts have buckets apart from what all ranks along ep hold, and a tied embedding that two
// stages hold has one of its own.
struct Bucket {
  AxisSet data_axes;                   // of its parameters
  Range all;                           // padding included
  Range own;                           // this rank's piece
  std::vector<Parameter*> parameters;  // in ascending place
};

// What a rank holds of every bucket.
enum class Extent : uint8_t { whole, own_piece };
inline Range held(const Bucket& bucket, Extent extent) { return extent == Extent::whole ? bucket.all : bucket.own; }

class FlatBuffer {
 public:
  FlatBuffer() = default;
  // Zeroed.
  FlatBuffer(device::Device& device, device::MemoryLedger& ledger, device::Owner owner, DType dtype,
             std::span<const Bucket> buckets, Extent extent);

  Extent extent() const { return extent_; }
  // Values of a range within what is held of one bucket, as [count].
  Tensor slice(Range range) const;
  // All that is held, bucket after bucket.
  Tensor tensor() const { return memory_.tensor(); }

 private:
  struct Piece {
    Range range;
    int64_t place;  // in memory
  };
  Extent extent_ = Extent::whole;
  std::vector<Piece> pieces_;
  device::Buffer memory_;
};

}  // namespace quintet::parallel
