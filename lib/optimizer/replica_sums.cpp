#include "lib/optimizer/replica_sums.h"

#include <map>

namespace quintet::optimizer {
namespace {

comm::ProcessGroup& group_of(comm::Communicator& communicator, const parallel::GradientSharers& sharers) {
  if (sharers.axis == Axis::pp) return communicator.ends(Axis::pp, Axis::pp);
  if (sharers.ranks == communicator.mesh().size(sharers.axis)) return communicator.group({sharers.axis}, sharers.axis);
  return communicator.block(sharers.axis, sharers.ranks, sharers.axis);
}

}  // namespace

ReplicaSums::ReplicaSums(device::Device& device, device::MemoryLedger& ledger, comm::Communicator& communicator,
                         const parallel::ParameterStore& store, const std::vector<parallel::ParameterSpan>& updated)
    : device_(device) {
  std::map<parallel::GradientSharers, Share> shares;  // in an order that all members have
  for (const parallel::ParameterSpan& span : updated) {
    const parallel::GradientSharers sharers = parallel::gradient_sharers(span.parameter->spec(), store.mesh());
    if (sharers.ranks == 1) continue;
    Share& share = shares[sharers];
    share.group = &group_of(communicator, sharers);
    share.what = fmt::format("gradients that {} ranks along {} share", sharers.ranks, name_of(sharers.axis));
    share.gradients.push_back(store.gradients(span.range));
    share.elements += span.range.count;
  }
  for (auto& [sharers, share] : shares) {
    if (share.gradients.size() > 1)
      share.packed =
          device::Buffer(device, ledger, device::Owner::communication, store.types().gradients, share.elements);
    shares_.push_back(std::move(share));
  }
}

void ReplicaSums::pack(const Share& share, bool back) {
  int64_t begin = 0;
  for (const Tensor& gradient : share.gradients) {
    const Tensor place = share.packed.slice(begin, gradient.elements());
    device_.copy(back ? place : gradient, back ? gradient : place);
    begin += gradient.elements();
  }
}

void ReplicaSums::sum() {
  std::vector<comm::Handle> sums;
  for (const Share& share : shares_) {
    const bool packs = share.gradients.size() > 1;
    if (packs) pack(share, /*back=*/false);
    sums.push_back(share.group->all_reduce(packs ? share.packed.tensor() : share.gradients.front(),
                                           comm::Reduction::sum, share.what));
  }
  for (size_t i = 0; i < shares_.size(); ++i) {
    sums[i].wait();
    if (shares_[i].gradients.size() > 1) pack(shares_[i], /*back=*/true);
  }
}

}  // namespace quintet::optimizer
