// Memory for whole units while layers use them, where a rank keeps only pieces in between. Units of a kind (experts, or
// what all ranks along ep hold) take two places in turn, so that one travels while another is in use; a unit that is
// lent, and so in use beside others, has a place of its own.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "lib/device/memory.h"
#include "lib/parallel/parameter_store.h"

namespace quintet::optimizer {

class UnitBuffers {
 public:
  UnitBuffers(device::Device& device, device::MemoryLedger& ledger, device::Owner owner, DType dtype,
              const parallel::ParameterStore& store);

  size_t places() const { return memory_.size(); }
  // That the unit may take; none for a unit without trained parameters.
  std::span<const size_t> places_of(const parallel::Unit& unit) const { return units_[unit.index].places; }
  std::span<const parallel::Bucket* const> buckets_of(const parallel::Unit& unit) const {
    return units_[unit.index].buckets;
  }
  // A bucket of the unit, the i-th of buckets_of(), in one of its places.
  Tensor bucket_in(size_t place, const parallel::Unit& unit, size_t i) const;

 private:
  struct Layout {
    std::vector<const parallel::Bucket*> buckets;
    std::vector<int64_t> begins;  // of each bucket in a place
    std::vector<size_t> places;
  };
  std::vector<Layout> units_;  // by index
  std::vector<device::Buffer> memory_;
};

// The part of a bucket that this rank owns, in memory that holds all of it.
inline Tensor own_part(const parallel::Bucket& bucket, Tensor all) {
  return all.rows(bucket.own.begin - bucket.all.begin, bucket.own.count);
}

}  // namespace quintet::optimizer
