#include "lib/parallel/expert_dispatch.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lib/base/integers.h"

namespace quintet::parallel {
namespace {

int64_t sum(std::span<const int64_t> counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

std::vector<int64_t> times(std::vector<int64_t> counts, int64_t factor) {
  for (int64_t& count : counts) count *= factor;
  return counts;
}

// Exclusive sums.
std::vector<int64_t> starts_of(std::span<const int64_t> counts) {
  std::vector<int64_t> starts(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), starts.begin(), int64_t{0});
  return starts;
}

}  // namespace

ExpertDispatch::ExpertDispatch(comm::Communicator& communicator, device::Device& device, const TensorRegion& tensor,
                               int64_t experts, double room)
    : device_(device),
      tensor_(tensor),
      ranks_(communicator.group({Axis::ep}, Axis::ep)),
      tensor_counts_(communicator.group({Axis::tp}, Axis::ep)),
      sequence_(communicator.group(tensor.splits_rows() ? AxisSet{Axis::tp, Axis::cp} : AxisSet{Axis::cp}, Axis::ep)),
      experts_(experts),
      own_experts_(div_exact(experts, ranks_.size())),
      room_(room) {}

std::vector<int64_t> ExpertDispatch::exchange_counts(std::span<const int64_t> slots_of_expert) const {
  std::vector<int64_t> sent(slots_of_expert.begin(), slots_of_expert.end()), received(sent.size());
  const std::vector<int64_t> even(static_cast<size_t>(ranks_.size()), own_experts_);
  ranks_
      .all_to_all(Tensor(sent.data(), DType::i64, {experts_}), even, Tensor(received.data(), DType::i64, {experts_}),
                  even, "counts of rows for experts")
      .wait();
  if (!tensor_.splits_rows()) return received;
  std::vector<int64_t> all(static_cast<size_t>(tensor_.ranks() * experts_));
  const std::vector<int64_t> counts(static_cast<size_t>(tensor_.ranks()), experts_);
  tensor_counts_
      .all_gather(Tensor(received.data(), DType::i64, {experts_}), counts,
                  Tensor(all.data(), DType::i64, {tensor_.ranks() * experts_}), "counts of rows that tensor ranks got")
      .wait();
  return all;
}

std::vector<int64_t> ExpertDispatch::fullest_counts(int64_t rows, int64_t top_k, int64_t kept) const {
  const int64_t even = ceil_div(rows * top_k, ranks_.size());  // from each of these
  const int64_t most = rows * std::min(top_k, own_experts_);   // a row chooses an expert once
  const int64_t full = std::min(most, static_cast<int64_t>(std::ceil(room_ * static_cast<double>(even))));
  const int64_t gathered = tensor_.splits_rows() ? tensor_.ranks() : 1, others = ranks_.size() - 1;
  std::vector<int64_t> counts(static_cast<size_t>(gathered * experts_), 0);
  for (int64_t tensor_rank = 0; tensor_rank < gathered; ++tensor_rank)
    for (int64_t rank = 0; rank < ranks_.size(); ++rank) {
      int64_t count = full;
      if (gathered == 1 || tensor_rank == tensor_.rank())
        count = rank == ranks_.rank() ? kept : ceil_div(ranks_.size() * full - kept, others);
      // All for one expert: what a layer needs beside its rows grows with the largest.
      counts[static_cast<size_t>(tensor_rank * experts_ + rank * own_experts_)] = count;
    }
  return counts;
}

Tensor ExpertDispatch::upload(device::Arena& arena, std::vector<int32_t>& values) const {
  const Shape shape = {static_cast<int64_t>(values.size())};
  const Tensor tensor = arena.allocate(DType::i32, shape);
  if (!values.empty()) device_.copy(Tensor(values.data(), DType::i32, shape), tensor);
  return tensor;
}

ExpertDispatch::Plan ExpertDispatch::plan(device::Arena& arena, std::span<const int32_t> choices, int64_t top_k) const {
  Plan plan;
  std::vector<int64_t> slots_of_expert(static_cast<size_t>(experts_), 0);
  for (const int32_t expert : choices)
    if (expert != kDropped) ++slots_of_expert[static_cast<size_t>(expert)];

  std::vector<int64_t> next = starts_of(slots_of_expert);
  std::vector<int32_t> row_of_slot(static_cast<size_t>(sum(slots_of_expert))), slot_of_choice(choices.size());
  for (size_t i = 0; i < choices.size(); ++i) {
    slot_of_choice[i] = kDropped;
    if (choices[i] == kDropped) continue;
    const int64_t slot = next[static_cast<size_t>(choices[i])]++;
    row_of_slot[static_cast<size_t>(slot)] = narrow<int32_t>(static_cast<int64_t>(i) / top_k);
    slot_of_choice[i] = narrow<int32_t>(slot);
  }
  plan.row_of_slot = upload(arena, row_of_slot);
  plan.slot_of_choice =
      upload(arena, slot_of_choice).reshaped({div_exact(static_cast<int64_t>(choices.size()), top_k), top_k});

  for (int64_t rank = 0; rank < ranks_.size(); ++rank) {
    const auto first = static_cast<size_t>(rank * own_experts_), own = static_cast<size_t>(own_experts_);
    plan.sent.push_back(sum(std::span(slots_of_expert).subspan(first, own)));
  }
  const std::vector<int64_t> arrived =
      device_.computes()
          ? exchange_counts(slots_of_expert)
          : fullest_counts(div_exact(std::ssize(choices), top_k), top_k, plan.sent[static_cast<size_t>(ranks_.rank())]);
  for (int64_t rank = 0; rank < ranks_.size(); ++rank) {
    const auto first = static_cast<size_t>(rank * own_experts_), own = static_cast<size_t>(own_experts_);
    const int64_t here = tensor_.splits_rows() ? tensor_.rank() * experts_ : 0;
    plan.received.push_back(sum(std::span(arrived).subspan(static_cast<size_t>(here) + first, own)));
  }
  for (size_t first = 0; first < arrived.size(); first += static_cast<size_t>(experts_))
    plan.gathered.push_back(sum(std::span(arrived).subspan(first, static_cast<size_t>(experts_))));

  // Rows arrive by tensor rank, by rank along ep, by expert.
  const auto own = static_cast<size_t>(own_experts_);
  plan.expert_rows.assign(own, 0);
  for (size_t i = 0; i < arrived.size(); ++i) plan.expert_rows[i % own] += arrived[i];
  if (arrived.size() == own) return plan;
  std::vector<int64_t> place = starts_of(plan.expert_rows);
  std::vector<int32_t> by_expert(static_cast<size_t>(sum(arrived))), by_arrival(by_expert.size());
  int64_t row = 0;
  for (size_t i = 0; i < arrived.size(); ++i)
    for (int64_t j = 0; j < arrived[i]; ++j, ++row) {
      const int64_t to = place[i % own]++;
      by_expert[static_cast<size_t>(to)] = narrow<int32_t>(row);
      by_arrival[static_cast<size_t>(row)] = narrow<int32_t>(to);
    }
  plan.by_expert = upload(arena, by_expert);
  plan.by_arrival = upload(arena, by_arrival);
  return plan;
}

int64_t ExpertDispatch::received_rows(const Plan& plan) const { return sum(plan.received); }

int64_t ExpertDispatch::expert_rows(const Plan& plan) const { return sum(plan.expert_rows); }

void ExpertDispatch::send(const Plan& plan, Tensor slots, Tensor received, std::string_view what) const {
  if (ranks_.size() == 1) return;
  const int64_t width = slots.size(1);
  ranks_.all_to_all(slots, times(plan.sent, width), received, times(plan.received, width), what).wait();
}

void ExpertDispatch::send_back(const Plan& plan, Tensor received, Tensor slots, std::string_view what) const {
  if (ranks_.size() == 1) return;
  const int64_t width = slots.size(1);
  ranks_.all_to_all(received, times(plan.received, width), slots, times(plan.sent, width), what).wait();
}

Tensor ExpertDispatch::gather(device::Arena& scratch, const Plan& plan, Tensor received, std::string_view what) const {
  const Shape whole = {expert_rows(plan), received.size(1)};
  Tensor arrived = received;
  if (tensor_.splits_rows()) {
    arrived = scratch.allocate(received.dtype(), whole);
    tensor_.group().all_gather(received, times(plan.gathered, received.size(1)), arrived, what).wait();
  }
  if (!plan.by_expert) return arrived;
  const Tensor sorted = scratch.allocate(received.dtype(), whole);
  device_.gather_rows({.input = arrived, .index = plan.by_expert, .output = sorted});
  return sorted;
}

ExpertDispatch::Sum ExpertDispatch::start_sum(device::Arena& scratch, const Plan& plan, Tensor parts,
                                              std::string_view what) const {
  Tensor arrived = parts;
  if (plan.by_arrival) {
    arrived = scratch.allocate(parts.dtype(), parts.shape());
    device_.gather_rows({.input = parts, .index = plan.by_arrival, .output = arrived});
  }
  if (!tensor_.splits_rows()) return {arrived, tensor_.group().all_reduce(arrived, comm::Reduction::sum, what)};
  const Tensor total = scratch.allocate(parts.dtype(), {received_rows(plan), parts.size(1)});
  return {total, tensor_.group().reduce_scatter(arrived, times(plan.gathered, parts.size(1)), total, what)};
}

}  // namespace quintet::parallel
