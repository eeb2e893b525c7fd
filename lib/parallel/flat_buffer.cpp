#include "lib/parallel/flat_buffer.h"

#include <algorithm>

namespace quintet::parallel {

FlatBuffer::FlatBuffer(device::Device& device, device::MemoryLedger& ledger, device::Owner owner, DType dtype,
                       std::span<const Bucket> buckets, Extent extent)
    : extent_(extent) {
  int64_t elements = 0;
  for (const Bucket& bucket : buckets) {
    pieces_.push_back({held(bucket, extent), elements});
    elements += pieces_.back().range.count;
  }
  memory_ = device::Buffer(device, ledger, owner, dtype, elements);
}

Tensor FlatBuffer::slice(Range range) const {
  const auto after = std::upper_bound(pieces_.begin(), pieces_.end(), range.begin,
                                      [](int64_t begin, const Piece& piece) { return begin < piece.range.begin; });
  QUINTET_CHECK(after != pieces_.begin(), "element {} is not held", range.begin);
  const Piece& piece = *(after - 1);
  QUINTET_CHECK(range.end() <= piece.range.end(), "elements {} to {} are not held", range.begin, range.end());
  return memory_.slice(piece.place + range.begin - piece.range.begin, range.count);
}

}  // namespace quintet::parallel
