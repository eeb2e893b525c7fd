#include "lib/pipeline/schedule.h"

#include <algorithm>

#include <catch2/catch.hpp>

namespace quintet::pipeline {
namespace {

int64_t most_in_flight(const std::vector<Action>& actions) {
  int64_t now = 0, most = 0;
  for (const Action& action : actions) {
    now += action.kind == Action::Kind::forward ? 1 : -1;
    most = std::max(most, now);
  }
  return most;
}

// Each microbatch forward once and backward once, later, both in ascending order.
void require_complete(const std::vector<Action>& actions, int64_t microbatches) {
  int64_t forward = 0, backward = 0;
  for (const Action& action : actions) {
    if (action.kind == Action::Kind::forward) {
      REQUIRE(action.microbatch == forward++);
    } else {
      REQUIRE(action.microbatch == backward++);
      REQUIRE(backward <= forward);
    }
  }
  REQUIRE(forward == microbatches);
  REQUIRE(backward == microbatches);
}

}  // namespace

TEST_CASE("schedules run every microbatch once, in ascending order", "[quick][pipeline]") {
  for (const int64_t stages : {1, 2, 4, 7})
    for (int64_t stage = 0; stage < stages; ++stage)
      for (const int64_t microbatches : {1, 2, 3, 8, 13}) {
        require_complete(gpipe(microbatches), microbatches);
        require_complete(one_f_one_b(stages, stage, microbatches), microbatches);
        REQUIRE(most_in_flight(gpipe(microbatches)) == microbatches);
        REQUIRE(most_in_flight(one_f_one_b(stages, stage, microbatches)) == std::min(stages - stage, microbatches));
      }
}

}  // namespace quintet::pipeline
