#include "lib/pipeline/schedule_check.h"

#include <algorithm>

#include <catch2/catch.hpp>

#include "lib/base/random.h"
#include "tests/pipeline/schedules.h"

namespace quintet::pipeline {
namespace {

using config::PipelineSchedule;
using Kind = Action::Kind;

std::vector<Action>::iterator find(std::vector<Action>& list, const Action& action) {
  const auto found = std::find(list.begin(), list.end(), action);
  REQUIRE(found != list.end());
  return found;
}

void drop(std::vector<Action>& list, const Action& action) { list.erase(find(list, action)); }

void repeat(std::vector<Action>& list, const Action& action) { list.insert(find(list, action), action); }

void swap(std::vector<Action>& list, const Action& a, const Action& b) { std::iter_swap(find(list, a), find(list, b)); }

// Moves `action` to stand just before `place`.
void move_before(std::vector<Action>& list, const Action& place, const Action& action) {
  drop(list, action);
  list.insert(find(list, place), action);
}

constexpr std::array kKinds = {Kind::forward,         Kind::backward,         Kind::receive_activation,
                               Kind::send_activation, Kind::receive_gradient, Kind::send_gradient};

}  // namespace

TEST_CASE("a schedule that lacks an action is refused", "[quick][pipeline]") {
  for (const Kind kind : kKinds) {
    const Action action{kind, 2};
    Schedule schedule = training(PipelineSchedule::one_f_one_b, 3, 4);
    drop(schedule[1], action);
    CHECK(schedule.problem() == "stage 1: " + to_string(action) + " is missing");
  }
}

TEST_CASE("a schedule that repeats an action is refused", "[quick][pipeline]") {
  for (const Kind kind : kKinds) {
    const Action action{kind, 2};
    Schedule schedule = training(PipelineSchedule::one_f_one_b, 3, 4);
    repeat(schedule[1], action);
    CHECK(schedule.problem() == "stage 1: " + to_string(action) + " stands 2 times, not once");
  }
}

TEST_CASE("a microbatch that does not exist is refused", "[quick][pipeline]") {
  Schedule schedule = training(PipelineSchedule::gpipe, 2, 4);
  SECTION("too high") {
    schedule[1].push_back(Action::backward(4));
    CHECK(schedule.problem() == "stage 1: backward of microbatch 4 is not one of 4 microbatches");
  }
  SECTION("negative") {
    schedule[0].push_back(Action::forward(-1));
    CHECK(schedule.problem() == "stage 0: forward of microbatch -1 is not one of 4 microbatches");
  }
}

TEST_CASE("an evaluation with a backward somewhere is refused", "[quick][pipeline]") {
  Schedule schedule = evaluation(2, 2);
  SECTION("a backward makes it training") {
    schedule[1].push_back(Action::backward(1));
    CHECK(schedule.problem() == "stage 0: backward of microbatch 0 is missing");
  }
  SECTION("a gradient without a backward") {
    schedule[1].push_back(Action::send_gradient(1));
    CHECK(schedule.problem() ==
          "stage 1: gradient send of microbatch 1 has no place; without backwards there are no gradients");
  }
}

TEST_CASE("a transfer at the end of the pipeline is refused", "[quick][pipeline]") {
  for (const Action action : {Action::receive_activation(1), Action::send_gradient(1)}) {
    Schedule schedule = training(PipelineSchedule::gpipe, 3, 2);
    schedule[0].push_back(action);
    CHECK(schedule.problem() == "stage 0: " + to_string(action) + " has no place; there is no stage at the other end");
  }
  for (const Action action : {Action::send_activation(1), Action::receive_gradient(1)}) {
    Schedule schedule = training(PipelineSchedule::gpipe, 3, 2);
    schedule[2].push_back(action);
    CHECK(schedule.problem() == "stage 2: " + to_string(action) + " has no place; there is no stage at the other end");
  }
}

TEST_CASE("a backward before its forward is refused", "[quick][pipeline]") {
  Schedule schedule = training(PipelineSchedule::gpipe, 1, 2);
  swap(schedule[0], Action::forward(1), Action::backward(1));
  CHECK(schedule.problem() ==
        "stage 0: backward of microbatch 1 stands before forward of microbatch 1; a backward needs what its forward "
        "kept");
}

TEST_CASE("descending microbatches are refused", "[quick][pipeline]") {
  Schedule schedule = training(PipelineSchedule::gpipe, 1, 3);
  SECTION("backwards") {
    swap(schedule[0], Action::backward(1), Action::backward(2));
    CHECK(schedule.problem() ==
          "stage 0: backward of microbatch 2 stands before backward of microbatch 1; microbatches run in ascending "
          "order, so that gradients add up in it");
  }
  SECTION("forwards") {
    swap(schedule[0], Action::forward(0), Action::forward(1));
    CHECK(schedule.problem() ==
          "stage 0: forward of microbatch 1 stands before forward of microbatch 0; microbatches run in ascending "
          "order, so that gradients add up in it");
  }
}

TEST_CASE("a receive after the computation that needs it is refused", "[quick][pipeline]") {
  Schedule schedule = training(PipelineSchedule::one_f_one_b, 3, 3);
  SECTION("of activations") {
    swap(schedule[1], Action::receive_activation(1), Action::forward(1));
    CHECK(schedule.problem() ==
          "stage 1: forward of microbatch 1 stands before activation receive of microbatch 1; a receive is posted "
          "before the computation that needs it");
  }
  SECTION("of gradients") {
    swap(schedule[1], Action::receive_gradient(1), Action::backward(1));
    CHECK(schedule.problem() ==
          "stage 1: backward of microbatch 1 stands before gradient receive of microbatch 1; a receive is posted "
          "before the computation that needs it");
  }
}

TEST_CASE("a send before its computation is refused", "[quick][pipeline]") {
  Schedule schedule = training(PipelineSchedule::one_f_one_b, 3, 3);
  SECTION("of activations") {
    swap(schedule[1], Action::send_activation(1), Action::forward(1));
    CHECK(schedule.problem() ==
          "stage 1: activation send of microbatch 1 stands before forward of microbatch 1; a send follows the "
          "computation whose output it takes");
  }
  SECTION("of gradients") {
    swap(schedule[1], Action::send_gradient(1), Action::backward(1));
    CHECK(schedule.problem() ==
          "stage 1: gradient send of microbatch 1 stands before backward of microbatch 1; a send follows the "
          "computation whose output it takes");
  }
}

TEST_CASE("messages received in another order than sent are refused", "[quick][pipeline]") {
  Schedule schedule = training(PipelineSchedule::gpipe, 2, 3);
  SECTION("activations that one sends late") {
    move_before(schedule[0], Action::send_activation(2), Action::send_activation(1));
    CHECK(schedule.problem().empty());
    move_before(schedule[0], Action::send_activation(1), Action::send_activation(2));
    CHECK(schedule.problem() ==
          "stage 1: activation receive of microbatch 1 meets activation send of microbatch 2 of stage 0; messages "
          "between two stages are received in the order sent");
  }
  SECTION("gradients whose receives are posted the other way round") {
    swap(schedule[0], Action::receive_gradient(0), Action::receive_gradient(1));
    CHECK(schedule.problem() ==
          "stage 0: gradient receive of microbatch 1 meets gradient send of microbatch 0 of stage 1; messages between "
          "two stages are received in the order sent");
  }
}

TEST_CASE("a schedule that keeps more than it promises is refused", "[quick][pipeline]") {
  for (const PipelineSchedule kind : kSchedules)
    for (const int64_t stages : {1, 2, 5})
      for (const int64_t microbatches : {1, 4, 9})
        for (size_t stage = 0; stage < static_cast<size_t>(stages); ++stage) {
          Schedule schedule = training(kind, stages, microbatches);
          CHECK(schedule.problem().empty());
          --schedule.most_in_flight[stage];
          CHECK(!schedule.problem().empty());
        }
  Schedule schedule = training(PipelineSchedule::gpipe, 2, 4);
  schedule.most_in_flight = training(PipelineSchedule::one_f_one_b, 2, 4).most_in_flight;
  CHECK(schedule.problem() ==
        "stage 0: forward of microbatch 2 keeps 3 microbatches in flight; the schedule promises at most 2");
}

TEST_CASE("stages that wait for each other are refused", "[quick][pipeline]") {
  SECTION("the first stage alternates at once, the second runs all forwards first") {
    Schedule schedule = training(PipelineSchedule::gpipe, 2, 2);
    schedule[0] = with_transfers(one_f_one_b(1, 0, 2), 2, 0);
    CHECK(schedule.problem() ==
          "deadlock: stage 0: backward of microbatch 0 waits for gradient send of microbatch 0 of stage 1; stage 1: "
          "forward of microbatch 1 waits for activation send of microbatch 1 of stage 0");
  }
  SECTION("a send after what waits for its answer") {
    Schedule schedule = training(PipelineSchedule::one_f_one_b, 3, 1);
    drop(schedule[1], Action::send_activation(0));
    schedule[1].push_back(Action::send_activation(0));
    CHECK(schedule.problem() ==
          "deadlock: stage 0: backward of microbatch 0 waits for gradient send of microbatch 0 of stage 1; stage 1: "
          "backward of microbatch 0 waits for gradient send of microbatch 0 of stage 2; stage 2: forward of "
          "microbatch 0 waits for activation send of microbatch 0 of stage 1");
  }
}

TEST_CASE("no action of any schedule can be dropped or repeated", "[quick][pipeline]") {
  for (uint64_t draw = 0; draw < 300; ++draw) {
    const PhiloxBlock random = philox(31, draw, 0);
    const int64_t stages = 1 + random[0] % 12, microbatches = 1 + random[1] % 40;
    const uint32_t kind = random[2] % 3;
    const Schedule whole =
        kind < 2 ? training(kSchedules[kind], stages, microbatches) : evaluation(stages, microbatches);
    const size_t stage = random[3] % whole.lists.size();
    const size_t place = philox(31, draw, 1)[0] % whole.lists[stage].size();
    const Action action = whole.lists[stage][place];
    CAPTURE(stages, microbatches, kind, stage, to_string(action));
    Schedule less = whole, more = whole;
    drop(less[stage], action);
    repeat(more[stage], action);
    CHECK(!less.problem().empty());
    CHECK(!more.problem().empty());
  }
}

}  // namespace quintet::pipeline
