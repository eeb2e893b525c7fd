// Rows find the ranks of their experts and come back to the slots that they left from.
#include "lib/parallel/expert_dispatch.h"

#include <map>
#include <vector>

#include <catch2/catch.hpp>

#include "lib/base/random.h"

namespace quintet::parallel {
namespace {

constexpr std::array<Axis, kAxisCount> kOrder = {Axis::tp, Axis::cp, Axis::ep, Axis::dp, Axis::pp};
constexpr int64_t kTopK = 2, kWidth = 3;

struct Case {
  int64_t tp = 1, ep = 1, experts = 4, rows = 5;  // rows of each rank
  bool splits = true;
  bool sends_to_last_only = false;

  bool rows_differ() const { return splits && tp > 1; }  // between tensor ranks
};

// Choices of a rank's rows; every fifth slot is dropped.
std::vector<int32_t> choices_of(const Case& the_case, int64_t ep_rank, int64_t tp_rank) {
  const auto stream = static_cast<uint64_t>(ep_rank * 100 + (the_case.rows_differ() ? tp_rank : 0));
  std::vector<int32_t> choices;
  for (int64_t row = 0; row < the_case.rows; ++row) {
    const uint32_t draw = philox(3, static_cast<uint64_t>(row), stream)[0];
    const auto experts = static_cast<uint32_t>(the_case.experts);
    const uint32_t first = the_case.sends_to_last_only ? experts - 1 : draw % experts;
    choices.push_back(draw % 5 == 0 ? kDropped : static_cast<int32_t>(first));
    choices.push_back(static_cast<int32_t>((first + 1 + draw / 7 % (experts - 1)) % experts));
    if (the_case.sends_to_last_only) choices.back() = kDropped;
  }
  return choices;
}

double value(int64_t ep_rank, int64_t tp_rank, int64_t row) {
  return static_cast<double>(1000 * ep_rank + 100 * tp_rank + row + 1);
}

struct Seen {
  Coordinate coordinate;
  std::vector<std::vector<double>> of_expert;  // the first column of each own expert's rows
  std::vector<double> returned;                // of each choice
};

std::vector<Seen> dispatch(const Case& the_case) {
  const Mesh mesh({{1, the_case.tp, 1, the_case.ep, 1}}, kOrder);
  std::vector<Seen> all(static_cast<size_t>(the_case.tp * the_case.ep));
  const auto body = [&](comm::Communicator& communicator) {
    communicator.set_mesh(mesh);
    const int64_t rank = communicator.placement().rank;
    Seen& seen = all[static_cast<size_t>(rank)];
    seen.coordinate = mesh.coordinate_of(rank);
    const int64_t e = seen.coordinate[Axis::ep], t = the_case.rows_differ() ? seen.coordinate[Axis::tp] : 0;
    const auto device = device::make_cpu_device(1);
    device::MemoryLedger ledger;
    device::Arena saved(*device, ledger, device::Owner::activations),
        scratch(*device, ledger, device::Owner::workspace);
    const TensorRegion tensor(communicator, the_case.splits);
    const ExpertDispatch dispatch(communicator, *device, tensor, the_case.experts);
    const ExpertDispatch::Plan plan = dispatch.plan(saved, choices_of(the_case, e, t), kTopK);

    const Tensor rows = saved.allocate(DType::fp64, {the_case.rows, kWidth});
    for (int64_t i = 0; i < rows.elements(); ++i) rows.span<double>()[static_cast<size_t>(i)] = value(e, t, i / kWidth);
    const Tensor slots = saved.allocate(DType::fp64, {plan.sent_rows(), kWidth});
    device->gather_rows({.input = rows, .index = plan.row_of_slot, .output = slots});
    const Tensor received = saved.allocate(DType::fp64, {dispatch.received_rows(plan), kWidth});
    if (dispatch.ranks() == 1) {
      device->copy(slots, received);
    } else {
      dispatch.send(plan, slots, received, "rows");
    }
    const Tensor gathered = dispatch.gather(scratch, plan, received, "rows");
    int64_t next = 0;
    for (const int64_t count : plan.expert_rows) {
      std::vector<double>& mine = seen.of_expert.emplace_back();
      for (int64_t i = 0; i < count; ++i, ++next)
        mine.push_back(gathered.span<double>()[static_cast<size_t>(next * kWidth)]);
    }
    const Tensor parts = scratch.allocate(DType::fp64, gathered.shape());
    device->copy(gathered, parts);
    ExpertDispatch::Sum sum = dispatch.start_sum(scratch, plan, parts, "parts");
    sum.done.wait();
    if (dispatch.ranks() == 1) {
      device->copy(sum.total, slots);
    } else {
      dispatch.send_back(plan, sum.total, slots, "sums");
    }
    for (const int32_t slot : plan.slot_of_choice.span<int32_t>())
      seen.returned.push_back(slot == kDropped ? 0 : slots.span<double>()[static_cast<size_t>(slot * kWidth)]);
  };
  REQUIRE(comm::run_thread_ranks(std::ssize(all), body) == 0);
  return all;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const bool splits : {true, false})
    for (const int64_t tp : {1, 2})
      for (const int64_t ep : {1, 2, 4})
        for (const int64_t experts : {4, 8}) all.push_back({.tp = tp, .ep = ep, .experts = experts, .splits = splits});
  all.push_back({.tp = 2, .ep = 4, .rows = 1});                              // some ranks get nothing
  all.push_back({.tp = 2, .ep = 2, .rows = 7, .sends_to_last_only = true});  // half of them do
  return all;
}

}  // namespace

TEST_CASE("experts get the rows that chose them, in the order of ranks and rows", "[quick][parallel][moe]") {
  for (const Case& the_case : cases()) {
    CAPTURE(the_case.tp, the_case.ep, the_case.experts, the_case.splits);
    // By tensor rank, rank along ep, row.
    std::map<int32_t, std::vector<double>> expected;
    for (int64_t t = 0; t < (the_case.rows_differ() ? the_case.tp : 1); ++t)
      for (int64_t e = 0; e < the_case.ep; ++e) {
        const std::vector<int32_t> choices = choices_of(the_case, e, t);
        for (size_t i = 0; i < choices.size(); ++i)
          if (choices[i] != kDropped) expected[choices[i]].push_back(value(e, t, static_cast<int64_t>(i) / kTopK));
      }
    const int64_t own = the_case.experts / the_case.ep;
    for (const Seen& seen : dispatch(the_case)) {
      REQUIRE(std::ssize(seen.of_expert) == own);
      for (int64_t i = 0; i < own; ++i)
        REQUIRE(seen.of_expert[static_cast<size_t>(i)] ==
                expected[static_cast<int32_t>(seen.coordinate[Axis::ep] * own + i)]);
    }
  }
}

TEST_CASE("sums over tensor ranks come back to the choices that rows left from", "[quick][parallel][moe]") {
  for (const Case& the_case : cases()) {
    CAPTURE(the_case.tp, the_case.ep, the_case.experts, the_case.splits);
    for (const Seen& seen : dispatch(the_case)) {
      const int64_t e = seen.coordinate[Axis::ep], t = the_case.rows_differ() ? seen.coordinate[Axis::tp] : 0;
      const std::vector<int32_t> choices = choices_of(the_case, e, t);
      for (size_t i = 0; i < choices.size(); ++i)
        REQUIRE(seen.returned[i] == (choices[i] == kDropped ? 0
                                                            : static_cast<double>(the_case.tp) *
                                                                  value(e, t, static_cast<int64_t>(i) / kTopK)));
    }
  }
}

}  // namespace quintet::parallel
