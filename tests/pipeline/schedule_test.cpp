#include "lib/pipeline/schedule.h"

#include <algorithm>
#include <set>

#include <catch2/catch.hpp>

#include "tests/pipeline/schedules.h"

namespace quintet::pipeline {
namespace {

using config::PipelineSchedule;
using Kind = Action::Kind;

constexpr int64_t kMostRanks = 12;
constexpr int64_t kMostMicrobatches = 40;

// Calls use(schedule) for gpipe, 1f1b and an evaluation of every size.
template <typename Use>
void for_all_schedules(const Use& use) {
  for (int64_t ranks = 1; ranks <= kMostRanks; ++ranks)
    for (int64_t microbatches = 1; microbatches <= kMostMicrobatches; ++microbatches) {
      CAPTURE(ranks, microbatches);
      for (const PipelineSchedule schedule : kSchedules) use(training(schedule, ranks, microbatches));
      use(evaluation(ranks, microbatches));
    }
}

int64_t kept_at_once(const std::vector<Action>& actions) {
  int64_t now = 0, most = 0;
  for (const Action& action : actions) {
    if (action.kind == Kind::forward) ++now;
    if (action.completes()) --now;
    most = std::max(most, now);
  }
  return most;
}

std::vector<int64_t> microbatches_of(const std::vector<Action>& actions, Kind kind, int64_t stage) {
  std::vector<int64_t> microbatches;
  for (const Action& action : actions)
    if (action.kind == kind && action.stage == stage) microbatches.push_back(action.microbatch);
  return microbatches;
}

std::vector<std::string> in_words(const std::vector<Action>& actions) {
  std::vector<std::string> words;
  for (const Action& action : actions) words.push_back(symbol(action));
  return words;
}

// The receive of every computation is posted just before the one ahead of it; the very first has none ahead.
bool receives_one_ahead(const std::vector<Action>& actions) {
  std::vector<Action> computations;
  for (const Action& action : actions)
    if (action.computes()) computations.push_back(action);
  size_t computed = 0;
  for (const Action& action : actions) {
    if (action.computes()) ++computed;
    if (action.kind != Kind::receive_activation && action.kind != Kind::receive_gradient) continue;
    const auto needs = [&](const Action& computation) {
      return computation.stage == action.stage && computation.microbatch == action.microbatch &&
             (action.kind == Kind::receive_activation ? computation.kind == Kind::forward : computation.is_backward());
    };
    const auto use = std::find_if(computations.begin(), computations.end(), needs) - computations.begin();
    if (static_cast<int64_t>(computed) != std::max<int64_t>(0, use - 1)) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("every schedule of 1 to 12 ranks and 1 to 40 microbatches passes the checker", "[quick][pipeline]") {
  for_all_schedules([](const Schedule& schedule) { REQUIRE(check_plan(schedule).empty()); });
}

TEST_CASE("an evaluation of several stages a rank passes the checker", "[quick][pipeline]") {
  for (const int64_t ranks : {1, 2, 3, 8})
    for (const int64_t microbatches : {1, 2, 7, 40}) {
      for (const int64_t chunks : {2, 3, 4}) REQUIRE(check_plan(evaluation(ranks, microbatches, chunks)).empty());
      REQUIRE(check_plan(evaluation(ranks, microbatches, 2, StagePlacement::Shape::vee)).empty());
    }
}

TEST_CASE("schedules run each microbatch in ascending order", "[quick][pipeline]") {
  for_all_schedules([](const Schedule& schedule) {
    std::vector<int64_t> ascending;
    for (int64_t i = 0; i < schedule.microbatches; ++i) ascending.push_back(i);
    for (int64_t stage = 0; stage < schedule.placement.stages(); ++stage) {
      const std::vector<Action>& list = schedule.lists[static_cast<size_t>(schedule.placement.rank_of(stage))];
      REQUIRE(microbatches_of(list, Kind::forward, stage) == ascending);
      const std::vector<int64_t> backwards = microbatches_of(list, Kind::backward, stage);
      REQUIRE((backwards == ascending || backwards.empty()));
    }
  });
}

TEST_CASE("gpipe keeps all microbatches, 1f1b as many as stages follow", "[quick][pipeline]") {
  for (int64_t ranks = 1; ranks <= kMostRanks; ++ranks)
    for (int64_t m = 1; m <= kMostMicrobatches; ++m) {
      const Schedule all = training(PipelineSchedule::gpipe, ranks, m);
      const Schedule few = training(PipelineSchedule::one_f_one_b, ranks, m);
      for (int64_t rank = 0; rank < ranks; ++rank) {
        CAPTURE(ranks, rank, m);
        const auto place = static_cast<size_t>(rank);
        REQUIRE(kept_at_once(all.lists[place]) == m);
        REQUIRE(all.most_kept[place] == m);
        REQUIRE(kept_at_once(few.lists[place]) == std::min(ranks - rank, m));
        REQUIRE(few.most_kept[place] == std::min(ranks - rank, m));
      }
    }
}

TEST_CASE("a receive is posted one computation ahead of its own", "[quick][pipeline]") {
  for_all_schedules([](const Schedule& schedule) {
    for (const std::vector<Action>& actions : schedule.lists) REQUIRE(receives_one_ahead(actions));
  });
}

TEST_CASE("ranks that hold all stages only compute", "[quick][pipeline]") {
  for (const Schedule& schedule :
       {training(PipelineSchedule::gpipe, 1, 5), training(PipelineSchedule::gpipe, 1, 5, 3),
        training(PipelineSchedule::one_f_one_b, 1, 5), evaluation(1, 5), evaluation(1, 5, 3)})
    for (const Action& action : schedule.lists.front()) CHECK(action.computes());
}

TEST_CASE("the middle one of three stages under 1f1b", "[quick][pipeline]") {
  CHECK(in_words(training(PipelineSchedule::one_f_one_b, 3, 2)[1]) ==
        std::vector<std::string>{"<a1.0", "<a1.1", "F1.0", ">a1.0", "<g1.0", "F1.1", ">a1.1", "<g1.1", "B1.0", ">g1.0",
                                 "B1.1", ">g1.1"});
}

TEST_CASE("fewer microbatches than stages fill no stage", "[quick][pipeline]") {
  for (const PipelineSchedule schedule : kSchedules) {
    const Schedule one = training(schedule, 7, 1);
    CHECK(one.problem().empty());
    CHECK(one.most_kept == std::vector<int64_t>(7, 1));
    CHECK(training(schedule, 7, 3).most_kept[0] == 3);
  }
}

TEST_CASE("stages go round a loop, or down a V and up again", "[quick][pipeline]") {
  const StagePlacement loop{.shape = StagePlacement::Shape::loop, .ranks = 3, .chunks = 2};
  const StagePlacement vee{.shape = StagePlacement::Shape::vee, .ranks = 3, .chunks = 2};
  std::vector<int64_t> round, down_and_up;
  for (int64_t stage = 0; stage < 6; ++stage) {
    round.push_back(loop.rank_of(stage));
    down_and_up.push_back(vee.rank_of(stage));
  }
  CHECK(round == std::vector<int64_t>{0, 1, 2, 0, 1, 2});
  CHECK(down_and_up == std::vector<int64_t>{0, 1, 2, 2, 1, 0});
  CHECK(loop.stages_of(1) == std::vector<int64_t>{1, 4});
  CHECK(vee.stages_of(0) == std::vector<int64_t>{0, 5});
}

TEST_CASE("each kind of message into each stage has a channel, the same at both ends", "[quick][pipeline]") {
  std::set<uint16_t> channels = {0};
  for (int64_t stage = 0; stage < 9; ++stage) {
    const uint16_t activations = channel_of({Kind::send_activation, stage, 3});
    const uint16_t gradients = channel_of({Kind::send_gradient, stage + 1, 3});
    CHECK(channel_of({Kind::receive_activation, stage + 1, 3}) == activations);
    CHECK(channel_of({Kind::receive_gradient, stage, 3}) == gradients);
    CHECK(channels.insert(activations).second);
    CHECK(channels.insert(gradients).second);
  }
}

}  // namespace quintet::pipeline
