#include "lib/parallel/tensor_region.h"

#include "lib/base/integers.h"

namespace quintet::parallel {

TensorRegion::TensorRegion(comm::Communicator& communicator, bool splits_rows)
    : group_(communicator.group({Axis::tp}, Axis::tp)), splits_rows_(splits_rows && group_.size() > 1) {}

int64_t TensorRegion::local_rows(int64_t tokens) const { return splits_rows_ ? div_exact(tokens, ranks()) : tokens; }

Tensor TensorRegion::local(Tensor whole) const {
  const int64_t rows = local_rows(whole.size(0));
  return splits_rows_ ? whole.rows(rank() * rows, rows) : whole;
}

TensorRegion::Gathered TensorRegion::start_gather(device::Arena& scratch, Tensor local, std::string_view what) const {
  if (!splits_rows_) return {local, {}};
  const Tensor whole = scratch.allocate(local.dtype(), {local.size(0) * ranks(), local.size(1)});
  return {whole, group_.all_gather(local, group_.even_counts(whole.elements()), whole, what)};
}

Tensor TensorRegion::gather(device::Arena& scratch, Tensor local, std::string_view what) const {
  Gathered gathered = start_gather(scratch, local, what);
  gathered.done.wait();
  return gathered.whole;
}

Tensor TensorRegion::part_of(device::Arena& scratch, Tensor total) const {
  return splits_rows_ ? scratch.allocate(total.dtype(), {total.size(0) * ranks(), total.size(1)}) : total;
}

comm::Handle TensorRegion::reduce(Tensor part, Tensor total, std::string_view what) const {
  if (!splits_rows_) return group_.all_reduce(part, comm::Reduction::sum, what);
  return group_.reduce_scatter(part, group_.even_counts(part.elements()), total, what);
}

}  // namespace quintet::parallel
