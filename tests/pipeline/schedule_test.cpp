#include "lib/pipeline/schedule.h"

#include <algorithm>

#include <catch2/catch.hpp>

#include "tests/pipeline/schedules.h"

namespace quintet::pipeline {
namespace {

using Kind = Action::Kind;

constexpr int64_t kMostStages = 12;
constexpr int64_t kMostMicrobatches = 40;

// Calls use(schedule) for gpipe, 1f1b and an evaluation of every size.
template <typename Use>
void for_all_schedules(const Use& use) {
  for (int64_t stages = 1; stages <= kMostStages; ++stages)
    for (int64_t microbatches = 1; microbatches <= kMostMicrobatches; ++microbatches) {
      CAPTURE(stages, microbatches);
      for (const config::PipelineSchedule schedule : kSchedules) use(training(schedule, stages, microbatches));
      use(evaluation(stages, microbatches));
    }
}

int64_t kept_at_once(const std::vector<Action>& actions) {
  int64_t now = 0, most = 0;
  for (const Action& action : actions) {
    if (action.kind == Kind::forward) ++now;
    if (action.kind == Kind::backward) --now;
    most = std::max(most, now);
  }
  return most;
}

std::vector<int64_t> microbatches_of(const std::vector<Action>& actions, Kind kind) {
  std::vector<int64_t> microbatches;
  for (const Action& action : actions)
    if (action.kind == kind) microbatches.push_back(action.microbatch);
  return microbatches;
}

std::vector<std::string> in_words(const std::vector<Action>& actions) {
  std::vector<std::string> words;
  for (const Action& action : actions) words.push_back(to_string(action));
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
    const Kind user = action.kind == Kind::receive_activation ? Kind::forward : Kind::backward;
    const Action computation{user, action.microbatch};
    const auto use = std::find(computations.begin(), computations.end(), computation) - computations.begin();
    if (static_cast<int64_t>(computed) != std::max<int64_t>(0, use - 1)) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("every schedule of 1 to 12 stages and 1 to 40 microbatches passes the checker", "[quick][pipeline]") {
  for_all_schedules([](const Schedule& schedule) { REQUIRE(schedule.problem().empty()); });
}

TEST_CASE("schedules run each microbatch in ascending order", "[quick][pipeline]") {
  for_all_schedules([](const Schedule& schedule) {
    std::vector<int64_t> ascending;
    for (int64_t i = 0; i < schedule.microbatches; ++i) ascending.push_back(i);
    for (const std::vector<Action>& actions : schedule.lists) {
      REQUIRE(microbatches_of(actions, Kind::forward) == ascending);
      const std::vector<int64_t> backwards = microbatches_of(actions, Kind::backward);
      REQUIRE((backwards == ascending || backwards.empty()));
    }
  });
}

TEST_CASE("gpipe keeps all microbatches, 1f1b as many as stages follow", "[quick][pipeline]") {
  for (int64_t stages = 1; stages <= kMostStages; ++stages)
    for (int64_t stage = 0; stage < stages; ++stage)
      for (int64_t m = 1; m <= kMostMicrobatches; ++m) {
        CAPTURE(stages, stage, m);
        REQUIRE(kept_at_once(gpipe(m)) == m);
        REQUIRE(kept_at_once(one_f_one_b(stages, stage, m)) == std::min(stages - stage, m));
        for (const config::PipelineSchedule schedule : kSchedules)
          REQUIRE(kept_at_once(actions(schedule, stages, stage, m)) == most_in_flight(schedule, stages, stage, m));
      }
}

TEST_CASE("a receive is posted one computation ahead of its own", "[quick][pipeline]") {
  for_all_schedules([](const Schedule& schedule) {
    for (const std::vector<Action>& actions : schedule.lists) REQUIRE(receives_one_ahead(actions));
  });
}

TEST_CASE("a stage without neighbours only computes", "[quick][pipeline]") {
  CHECK(actions(config::PipelineSchedule::gpipe, 1, 0, 5) == gpipe(5));
  CHECK(actions(config::PipelineSchedule::one_f_one_b, 1, 0, 5) == one_f_one_b(1, 0, 5));
  CHECK(with_transfers(forward_only(5), 1, 0) == forward_only(5));
}

TEST_CASE("the middle one of three stages under 1f1b", "[quick][pipeline]") {
  CHECK(in_words(actions(config::PipelineSchedule::one_f_one_b, 3, 1, 2)) ==
        std::vector<std::string>{
            "activation receive of microbatch 0", "activation receive of microbatch 1", "forward of microbatch 0",
            "activation send of microbatch 0", "gradient receive of microbatch 0", "forward of microbatch 1",
            "activation send of microbatch 1", "gradient receive of microbatch 1", "backward of microbatch 0",
            "gradient send of microbatch 0", "backward of microbatch 1", "gradient send of microbatch 1"});
}

TEST_CASE("fewer microbatches than stages fill no stage", "[quick][pipeline]") {
  for (const config::PipelineSchedule schedule : kSchedules) {
    const Schedule one = training(schedule, 7, 1);
    CHECK(one.problem().empty());
    CHECK(one.most_in_flight == std::vector<int64_t>(7, 1));
    CHECK(training(schedule, 7, 3).most_in_flight[0] == 3);
  }
}

}  // namespace quintet::pipeline
