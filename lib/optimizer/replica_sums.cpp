#include "lib/optimizer/replica_sums.h"

namespace quintet::optimizer {
namespace {

enum class SharedBy : uint8_t { none, all_tensor_ranks, tensor_block, pipeline_ends };

SharedBy shared_by(const parallel::Parameter& parameter, const Mesh& mesh) {
  if (parameter.spec().sums_over_ends) return SharedBy::pipeline_ends;
  const int64_t replicas = parameter.tensor_replicas(mesh);
  if (replicas == 1) return SharedBy::none;
  if (!parameter.spec().shards.empty()) return SharedBy::tensor_block;
  return parameter.spec().sums_over_tp ? SharedBy::all_tensor_ranks : SharedBy::none;
}

}  // namespace

ReplicaSums::ReplicaSums(device::Device& device, device::MemoryLedger& ledger, comm::Communicator& communicator,
                         const parallel::ParameterStore& store, const std::vector<parallel::ParameterSpan>& updated)
    : device_(device) {
  const auto add = [&](SharedBy kind, std::string what, const auto& group_for) {
    Share share{.group = nullptr, .what = std::move(what), .gradients = {}, .packed = {}};
    int64_t elements = 0;
    for (const parallel::ParameterSpan& span : updated) {
      if (shared_by(*span.parameter, store.mesh()) != kind) continue;
      share.group = &group_for(*span.parameter);
      share.gradients.push_back(store.gradients(span.begin, span.count));
      elements += span.count;
    }
    if (share.gradients.empty()) return;
    if (share.gradients.size() > 1)
      share.packed = device::Buffer(device, ledger, "replica sums", store.types().gradients, elements);
    shares_.push_back(std::move(share));
  };
  const auto all = [&](const parallel::Parameter&) -> auto& { return communicator.group({Axis::tp}, Axis::tp); };
  const auto block = [&](const parallel::Parameter& parameter) -> auto& {
    return communicator.block(Axis::tp, parameter.tensor_replicas(store.mesh()), Axis::tp);
  };
  const auto ends = [&](const parallel::Parameter&) -> auto& { return communicator.ends(Axis::pp, Axis::pp); };
  add(SharedBy::all_tensor_ranks, "gradients of replicated parameters", all);
  add(SharedBy::tensor_block, "gradients of shared key heads", block);
  add(SharedBy::pipeline_ends, "gradients of the tied embedding", ends);
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
