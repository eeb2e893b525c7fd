#include "lib/pipeline/schedule.h"

#include <algorithm>
#include <set>

#include <catch2/catch.hpp>

#include "lib/config/enums.h"
#include "lib/pipeline/schedule_clock.h"
#include "tests/pipeline/schedules.h"

namespace quintet::pipeline {
namespace {

using config::PipelineSchedule;
using Kind = Action::Kind;

constexpr int64_t kMostRanks = 16;
constexpr int64_t kMostMicrobatches = 64;
constexpr int64_t kMostChunks = 4;

// Calls use(plan) for every schedule and an evaluation of so many ranks and microbatches, with every number of stages a
// rank.
template <typename Use>
void for_all_plans(int64_t ranks, int64_t microbatches, const Use& use) {
  CAPTURE(ranks, microbatches);
  for (int64_t chunks = 1; chunks <= kMostChunks; ++chunks) {
    CAPTURE(chunks);
    for (const PipelineSchedule schedule : kSchedules)
      if (allows(schedule, chunks)) {
        INFO(config::name_of(schedule));
        use(training(schedule, ranks, microbatches, chunks));
      }
    use(evaluation(ranks, microbatches, chunks));
  }
  use(evaluation(ranks, microbatches, 2, StagePlacement::Shape::vee));
}

// Of a sample of sizes, in which all small ones occur.
template <typename Use>
void for_some_plans(const Use& use) {
  for (const int64_t ranks : {1, 2, 3, 4, 7, 16})
    for (const int64_t microbatches : {1, 2, 3, 4, 5, 9, 14, 37}) for_all_plans(ranks, microbatches, use);
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

TEST_CASE("plans of many sizes pass the checker", "[quick][pipeline]") {
  for_some_plans([](const Schedule& plan) { REQUIRE(check_plan(plan).empty()); });
}

TEST_CASE("plans of 1 to 16 ranks, 1 to 4 stages a rank and 1 to 64 microbatches pass the checker",
          "[full][pipeline]") {
  for (int64_t ranks = 1; ranks <= kMostRanks; ++ranks)
    for (int64_t microbatches = 1; microbatches <= kMostMicrobatches; ++microbatches)
      for_all_plans(ranks, microbatches, [](const Schedule& plan) { REQUIRE(check_plan(plan).empty()); });
}

TEST_CASE("schedules run each microbatch in ascending order", "[quick][pipeline]") {
  for_some_plans([](const Schedule& schedule) {
    std::vector<int64_t> ascending;
    for (int64_t i = 0; i < schedule.microbatches; ++i) ascending.push_back(i);
    for (int64_t stage = 0; stage < schedule.placement.stages(); ++stage) {
      const std::vector<Action>& list = schedule.lists[static_cast<size_t>(schedule.placement.rank_of(stage))];
      REQUIRE(microbatches_of(list, Kind::forward, stage) == ascending);
      for (const Kind kind : {Kind::backward, Kind::backward_input, Kind::backward_weight}) {
        const std::vector<int64_t> backwards = microbatches_of(list, kind, stage);
        REQUIRE((backwards == ascending || backwards.empty()));
      }
    }
  });
}

TEST_CASE("each schedule keeps what its authors say", "[quick][pipeline]") {
  for (int64_t p = 1; p <= kMostRanks; ++p)
    for (const int64_t m : {1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 32, 40}) {
      const auto keeps = [&](PipelineSchedule schedule, int64_t chunks, int64_t rank) {
        return kept_at_once(training(schedule, p, m, chunks)[static_cast<size_t>(rank)]);
      };
      for (int64_t rank = 0; rank < p; ++rank) {
        CAPTURE(p, rank, m);
        CHECK(keeps(PipelineSchedule::gpipe, 1, rank) == m);
        CHECK(keeps(PipelineSchedule::one_f_one_b, 1, rank) == std::min(p - rank, m));
        CHECK(keeps(PipelineSchedule::zero_bubble, 1, rank) <= std::min(p, m));
        CHECK(keeps(PipelineSchedule::zero_bubble_v, 2, rank) <= 2 * std::min(p, m));
        for (int64_t v = 1; v <= kMostChunks; ++v) {
          const int64_t published = std::min(2 * (p - rank - 1) + (v - 1) * p + 1, v * m);
          if (m % p == 0) CHECK(keeps(PipelineSchedule::interleaved, v, rank) == published);
          CHECK(keeps(PipelineSchedule::interleaved, v, rank) <= published);
        }
      }
    }
}

TEST_CASE("each schedule is as idle as its authors say", "[quick][pipeline]") {
  for (int64_t p = 1; p <= kMostRanks; ++p)
    for (const int64_t m : {1, 2, 3, 4, 8, 9, 16, 32, 33, 48, 64}) {
      CAPTURE(p, m);
      const auto idle = [&](PipelineSchedule schedule, int64_t chunks) {
        return idle_units(training(schedule, p, m, chunks));
      };
      const auto bubble = static_cast<double>(3 * (p - 1));
      CHECK(idle(PipelineSchedule::gpipe, 1) == bubble);
      CHECK(idle(PipelineSchedule::one_f_one_b, 1) == bubble);
      for (int64_t v = 1; v <= kMostChunks; ++v)
        if (m % p == 0) CHECK(idle(PipelineSchedule::interleaved, v) == Approx(bubble / static_cast<double>(v)));
      if (m < 2 * p) continue;
      const double zero_bubble = idle(PipelineSchedule::zero_bubble, 1);
      CHECK(zero_bubble <= static_cast<double>(p));
      if (p >= 4) CHECK(idle(PipelineSchedule::zero_bubble_v, 2) < zero_bubble);
    }
}

TEST_CASE("one stage a rank makes interleaved 1f1b but for a longer warm-up", "[quick][pipeline]") {
  // Both alternate, and the last rank does so from the beginning.
  for (const int64_t p : {1, 2, 5})
    for (const int64_t m : {1, 4, 10}) {
      CAPTURE(p, m);
      CHECK(training(PipelineSchedule::interleaved, p, m, 1).lists.back() ==
            training(PipelineSchedule::one_f_one_b, p, m).lists.back());
    }
}

TEST_CASE("on one rank a weight part follows its input part at once", "[quick][pipeline]") {
  const Schedule plan = training(PipelineSchedule::zero_bubble, 1, 3);
  CHECK(in_words(plan.lists.front()) ==
        std::vector<std::string>{"F0.0", "I0.0", "W0.0", "F0.1", "I0.1", "W0.1", "F0.2", "I0.2", "W0.2"});
}

TEST_CASE("a receive is posted one computation ahead of its own", "[quick][pipeline]") {
  for_some_plans([](const Schedule& schedule) {
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
