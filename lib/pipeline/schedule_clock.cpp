#include "lib/pipeline/schedule_clock.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "lib/base/error.h"

namespace quintet::pipeline {
namespace {

using Kind = Action::Kind;

// What a stage hands on of a microbatch: its output, or the gradient of its input.
using Product = std::tuple<bool, int64_t, int64_t>;  // whether it is a gradient, stage, microbatch

}  // namespace

double play(const Plan& plan, const std::function<double(const Action& computation)>& duration) {
  std::map<Product, double> made;  // when
  std::vector<size_t> done(plan.lists.size(), 0);
  std::vector<double> clocks(plan.lists.size(), 0);
  // Runs a rank's next computation where its input is there.
  const auto advance = [&](size_t rank) {
    const Action& action = plan.lists[rank][done[rank]];
    const auto [kind, stage, microbatch] = action;
    double start = clocks[rank];
    if (action.computes() && kind != Kind::backward_weight) {
      const bool gradient = kind != Kind::forward;
      const int64_t from = gradient ? stage + 1 : stage - 1;
      if (0 <= from && from <= plan.placement.last_stage()) {
        const auto input = made.find({gradient, from, microbatch});
        if (input == made.end()) return false;
        start = std::max(start, input->second);
      }
      made[{gradient, stage, microbatch}] = start + duration(action);
    }
    if (action.computes()) clocks[rank] = start + duration(action);
    ++done[rank];
    return true;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < plan.lists.size(); ++rank)
      while (done[rank] < plan.lists[rank].size() && advance(rank)) moved = true;
  }
  for (size_t rank = 0; rank < plan.lists.size(); ++rank)
    QUINTET_CHECK(done[rank] == plan.lists[rank].size(), "rank {} waits for ever", rank);
  return *std::max_element(clocks.begin(), clocks.end());
}

double idle_units(const Plan& plan) {
  // In units of a stage: whole numbers.
  const double length = play(plan, [](const Action& action) { return action.kind == Kind::backward ? 2.0 : 1.0; });
  const auto chunks = static_cast<double>(plan.placement.chunks);
  return length / chunks - 3 * static_cast<double>(plan.microbatches);
}

double most_microbatches_kept(const Plan& plan) {
  int64_t most = 0;
  for (const std::vector<Action>& list : plan.lists) {
    int64_t kept = 0;
    for (const Action& action : list) {
      if (action.kind == Kind::forward) most = std::max(most, ++kept);
      if (action.completes()) --kept;
    }
  }
  return static_cast<double>(most) / static_cast<double>(plan.placement.chunks);
}

}  // namespace quintet::pipeline
