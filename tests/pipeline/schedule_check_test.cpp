#include "lib/pipeline/schedule_check.h"

#include <algorithm>

#include <catch2/catch.hpp>

#include <fmt/core.h>

#include "lib/base/error.h"
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

// Cuts a backward into its parts, the second to stand behind the first.
void split(std::vector<Action>& list, int64_t stage, int64_t microbatch) {
  const auto backward = find(list, {Kind::backward, stage, microbatch});
  backward->kind = Kind::backward_input;
  list.insert(backward + 1, {Kind::backward_weight, stage, microbatch});
}

constexpr std::array kKinds = {Kind::forward,         Kind::backward,         Kind::receive_activation,
                               Kind::send_activation, Kind::receive_gradient, Kind::send_gradient};

}  // namespace

TEST_CASE("a schedule that lacks an action is refused", "[quick][pipeline]") {
  for (const Kind kind : kKinds) {
    const Action action{kind, 1, 2};
    Schedule schedule = training(PipelineSchedule::one_f_one_b, 3, 4);
    drop(schedule[1], action);
    CHECK(schedule.problem() == "rank 1: " + to_string(action) + " is missing");
  }
}

TEST_CASE("a schedule that repeats an action is refused", "[quick][pipeline]") {
  for (const Kind kind : kKinds) {
    const Action action{kind, 1, 2};
    Schedule schedule = training(PipelineSchedule::one_f_one_b, 3, 4);
    repeat(schedule[1], action);
    CHECK(schedule.problem() == "rank 1: " + to_string(action) + " stands 2 times, not once");
  }
}

TEST_CASE("a microbatch that does not exist is refused", "[quick][pipeline]") {
  Schedule schedule = training(PipelineSchedule::gpipe, 2, 4);
  SECTION("too high") {
    schedule[1].push_back({Kind::backward, 1, 4});
    CHECK(schedule.problem() == "rank 1: backward of microbatch 4 on stage 1 is not one of 4 microbatches");
  }
  SECTION("negative") {
    schedule[0].push_back({Kind::forward, 0, -1});
    CHECK(schedule.problem() == "rank 0: forward of microbatch -1 on stage 0 is not one of 4 microbatches");
  }
}

TEST_CASE("an action of another rank's stage is refused", "[quick][pipeline]") {
  Schedule schedule = training(PipelineSchedule::gpipe, 2, 4, 2);
  schedule[0].push_back({Kind::forward, 3, 1});
  CHECK(schedule.problem() == "rank 0: forward of microbatch 1 on stage 3 is no stage of this rank");
}

TEST_CASE("an evaluation with a backward somewhere is refused", "[quick][pipeline]") {
  Schedule schedule = evaluation(2, 2);
  SECTION("a backward makes it training") {
    schedule[1].push_back({Kind::backward, 1, 1});
    CHECK(schedule.problem() == "rank 0: backward of microbatch 0 on stage 0 is missing");
  }
  SECTION("a gradient without a backward") {
    schedule[1].push_back({Kind::send_gradient, 1, 1});
    CHECK(schedule.problem() ==
          "rank 1: gradient send of microbatch 1 on stage 1 has no place; without backwards there are no gradients");
  }
}

TEST_CASE("a transfer at the end of the pipeline is refused", "[quick][pipeline]") {
  for (const Action action : {Action{Kind::receive_activation, 0, 1}, Action{Kind::send_gradient, 0, 1},
                              Action{Kind::send_activation, 2, 1}, Action{Kind::receive_gradient, 2, 1}}) {
    Schedule schedule = training(PipelineSchedule::gpipe, 3, 2);
    schedule[static_cast<size_t>(action.stage)].push_back(action);
    CHECK(schedule.problem() == fmt::format("rank {}: {} has no place; there is no stage on another rank at the other "
                                            "end",
                                            action.stage, to_string(action)));
  }
}

TEST_CASE("a transfer between stages of one rank is refused", "[quick][pipeline]") {
  Schedule schedule = training(PipelineSchedule::gpipe, 1, 2, 2);
  schedule[0].push_back({Kind::send_activation, 0, 1});
  CHECK(schedule.problem() ==
        "rank 0: activation send of microbatch 1 on stage 0 has no place; there is no stage on another rank at the "
        "other end");
}

TEST_CASE("a stage that runs before its neighbour on the same rank is refused", "[quick][pipeline]") {
  Schedule schedule = training(PipelineSchedule::gpipe, 1, 1, 2);
  CHECK(schedule.problem().empty());
  SECTION("forwards") {
    swap(schedule[0], {Kind::forward, 0, 0}, {Kind::forward, 1, 0});
    CHECK(schedule.problem() ==
          "rank 0: forward of microbatch 0 on stage 1 stands before forward of microbatch 0 on stage 0; a stage takes "
          "over what its neighbour on the same rank has computed");
  }
  SECTION("backwards") {
    swap(schedule[0], {Kind::backward, 0, 0}, {Kind::backward, 1, 0});
    CHECK(schedule.problem() ==
          "rank 0: backward of microbatch 0 on stage 0 stands before backward of microbatch 0 on stage 1; a stage "
          "takes over what its neighbour on the same rank has computed");
  }
}

TEST_CASE("a backward before its forward is refused", "[quick][pipeline]") {
  Schedule schedule = training(PipelineSchedule::gpipe, 1, 2);
  swap(schedule[0], {Kind::forward, 0, 1}, {Kind::backward, 0, 1});
  CHECK(schedule.problem() ==
        "rank 0: backward of microbatch 1 on stage 0 stands before forward of microbatch 1 on stage 0; a backward "
        "needs what its forward kept");
}

TEST_CASE("descending microbatches are refused", "[quick][pipeline]") {
  Schedule schedule = training(PipelineSchedule::gpipe, 1, 3);
  SECTION("backwards") {
    swap(schedule[0], {Kind::backward, 0, 1}, {Kind::backward, 0, 2});
    CHECK(schedule.problem() ==
          "rank 0: backward of microbatch 2 on stage 0 stands before backward of microbatch 1 on stage 0; microbatches "
          "run in ascending order, so that gradients add up in it");
  }
  SECTION("forwards") {
    swap(schedule[0], {Kind::forward, 0, 0}, {Kind::forward, 0, 1});
    CHECK(schedule.problem() ==
          "rank 0: forward of microbatch 1 on stage 0 stands before forward of microbatch 0 on stage 0; microbatches "
          "run in ascending order, so that gradients add up in it");
  }
}

TEST_CASE("parts of backwards are checked as backwards are", "[quick][pipeline]") {
  Schedule schedule = training(PipelineSchedule::gpipe, 1, 3);
  for (const int64_t microbatch : {0, 1, 2}) split(schedule[0], 0, microbatch);
  CHECK(schedule.problem().empty());
  SECTION("a weight part is missing") {
    drop(schedule[0], {Kind::backward_weight, 0, 1});
    CHECK(schedule.problem() == "rank 0: weight part of the backward of microbatch 1 on stage 0 is missing");
  }
  SECTION("a backward is run whole and in parts") {
    schedule[0].push_back({Kind::backward, 0, 2});
    CHECK(schedule.problem() ==
          "rank 0: backward of microbatch 2 on stage 0 has no place; its parts stand there already");
  }
  SECTION("a weight part before its input part") {
    swap(schedule[0], {Kind::backward_input, 0, 1}, {Kind::backward_weight, 0, 1});
    CHECK(schedule.problem() ==
          "rank 0: weight part of the backward of microbatch 1 on stage 0 stands before input part of the backward of "
          "microbatch 1 on stage 0; a weight part needs what its input part left");
  }
  SECTION("weight parts descend") {
    drop(schedule[0], {Kind::backward_weight, 0, 1});
    schedule[0].push_back({Kind::backward_weight, 0, 1});
    CHECK(schedule.problem() ==
          "rank 0: weight part of the backward of microbatch 2 on stage 0 stands before weight part of the backward of "
          "microbatch 1 on stage 0; microbatches run in ascending order, so that gradients add up in it");
  }
  SECTION("a weight part after the whole backward of a later microbatch") {
    Schedule mixed = training(PipelineSchedule::gpipe, 1, 2);
    split(mixed[0], 0, 0);
    CHECK(mixed.problem().empty());
    swap(mixed[0], {Kind::backward_weight, 0, 0}, {Kind::backward, 0, 1});
    CHECK(mixed.problem() ==
          "rank 0: backward of microbatch 1 on stage 0 stands before weight part of the backward of microbatch 0 on "
          "stage 0; microbatches run in ascending order, so that gradients add up in it");
  }
  SECTION("a microbatch is kept to the end of its weight part") {
    Schedule late = training(PipelineSchedule::one_f_one_b, 1, 2);
    split(late[0], 0, 0);
    move_before(late[0], {Kind::backward, 0, 1}, {Kind::backward_weight, 0, 0});
    CHECK(late.problem() ==
          "rank 0: forward of microbatch 1 on stage 0 keeps 2 at once; the schedule promises at most 1");
  }
}

TEST_CASE("a receive after the computation that needs it is refused", "[quick][pipeline]") {
  Schedule schedule = training(PipelineSchedule::one_f_one_b, 3, 3);
  SECTION("of activations") {
    swap(schedule[1], {Kind::receive_activation, 1, 1}, {Kind::forward, 1, 1});
    CHECK(schedule.problem() ==
          "rank 1: forward of microbatch 1 on stage 1 stands before activation receive of microbatch 1 on stage 1; a "
          "receive is posted before the computation that needs it");
  }
  SECTION("of gradients") {
    swap(schedule[1], {Kind::receive_gradient, 1, 1}, {Kind::backward, 1, 1});
    CHECK(schedule.problem() ==
          "rank 1: backward of microbatch 1 on stage 1 stands before gradient receive of microbatch 1 on stage 1; a "
          "receive is posted before the computation that needs it");
  }
}

TEST_CASE("a send before its computation is refused", "[quick][pipeline]") {
  Schedule schedule = training(PipelineSchedule::one_f_one_b, 3, 3);
  SECTION("of activations") {
    swap(schedule[1], {Kind::send_activation, 1, 1}, {Kind::forward, 1, 1});
    CHECK(schedule.problem() ==
          "rank 1: activation send of microbatch 1 on stage 1 stands before forward of microbatch 1 on stage 1; a send "
          "follows the computation whose output it takes");
  }
  SECTION("of gradients") {
    swap(schedule[1], {Kind::send_gradient, 1, 1}, {Kind::backward, 1, 1});
    CHECK(schedule.problem() ==
          "rank 1: gradient send of microbatch 1 on stage 1 stands before backward of microbatch 1 on stage 1; a send "
          "follows the computation whose output it takes");
  }
}

TEST_CASE("a channel whose messages do not ascend at both ends is refused", "[quick][pipeline]") {
  Schedule schedule = training(PipelineSchedule::gpipe, 2, 3);
  SECTION("activations that one sends late") {
    move_before(schedule[0], {Kind::send_activation, 0, 2}, {Kind::send_activation, 0, 1});
    CHECK(schedule.problem().empty());
    move_before(schedule[0], {Kind::send_activation, 0, 1}, {Kind::send_activation, 0, 2});
    CHECK(schedule.problem() ==
          "rank 0: activation send of microbatch 2 on stage 0 stands before activation send of microbatch 1 on stage "
          "0; the messages of a channel run in ascending order at both ends, so that they meet");
  }
  SECTION("gradients whose receives are posted the other way round") {
    swap(schedule[0], {Kind::receive_gradient, 0, 0}, {Kind::receive_gradient, 0, 1});
    CHECK(schedule.problem() ==
          "rank 0: gradient receive of microbatch 1 on stage 0 stands before gradient receive of microbatch 0 on stage "
          "0; the messages of a channel run in ascending order at both ends, so that they meet");
  }
}

TEST_CASE("a schedule that keeps more than it promises is refused", "[quick][pipeline]") {
  // Of zero_bubble_v the bound is the authors', and some ranks keep less.
  for (const PipelineSchedule kind : {PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b,
                                      PipelineSchedule::interleaved, PipelineSchedule::zero_bubble})
    for (const int64_t ranks : {1, 2, 5})
      for (const int64_t microbatches : {1, 4, 9})
        for (size_t rank = 0; rank < static_cast<size_t>(ranks); ++rank) {
          Schedule schedule = training(kind, ranks, microbatches);
          CHECK(schedule.problem().empty());
          --schedule.most_kept[rank];
          CHECK(!schedule.problem().empty());
        }
  Schedule schedule = training(PipelineSchedule::gpipe, 2, 4);
  schedule.most_kept = training(PipelineSchedule::one_f_one_b, 2, 4).most_kept;
  CHECK(schedule.problem() ==
        "rank 0: forward of microbatch 2 on stage 0 keeps 3 at once; the schedule promises at most 2");
}

TEST_CASE("ranks that wait for each other are refused", "[quick][pipeline]") {
  SECTION("the first rank alternates at once, the second runs all forwards first") {
    Schedule schedule = training(PipelineSchedule::gpipe, 2, 2);
    swap(schedule[0], {Kind::forward, 0, 1}, {Kind::backward, 0, 0});
    move_before(schedule[0], {Kind::backward, 0, 0}, {Kind::receive_gradient, 0, 0});
    move_before(schedule[0], {Kind::backward, 0, 1}, {Kind::send_activation, 0, 1});
    CHECK(schedule.problem() ==
          "deadlock: rank 0: backward of microbatch 0 on stage 0 waits for gradient send of microbatch 0 on stage 1 by "
          "rank 1; rank 1: forward of microbatch 1 on stage 1 waits for activation send of microbatch 1 on stage 0 by "
          "rank 0");
  }
  SECTION("a send after what waits for its answer") {
    Schedule schedule = training(PipelineSchedule::one_f_one_b, 3, 1);
    drop(schedule[1], {Kind::send_activation, 1, 0});
    schedule[1].push_back({Kind::send_activation, 1, 0});
    CHECK(schedule.problem() ==
          "deadlock: rank 0: backward of microbatch 0 on stage 0 waits for gradient send of microbatch 0 on stage 1 by "
          "rank 1; rank 1: backward of microbatch 0 on stage 1 waits for gradient send of microbatch 0 on stage 2 by "
          "rank 2; rank 2: forward of microbatch 0 on stage 2 waits for activation send of microbatch 0 on stage 1 by "
          "rank 1");
  }
}

TEST_CASE("a report shows all ranks around the fault, and the faulty action in brackets", "[quick][pipeline]") {
  Schedule schedule = training(PipelineSchedule::one_f_one_b, 2, 2);
  swap(schedule[1], {Kind::forward, 1, 1}, {Kind::backward, 1, 1});
  const std::string report = check_plan(schedule);
  CHECK(report.substr(report.find('\n')) ==
        "\n  rank 0     F0.0      >a0.0     <g0.0     F0.1      >a0.1     <g0.1     B0.0      B0.1"
        "\n  rank 1     <a1.0     F1.0      <a1.1     B1.0      >g1.0    [B1.1]     F1.1      >g1.1");
}

TEST_CASE("no action of any schedule can be dropped or repeated", "[quick][pipeline]") {
  for (uint64_t draw = 0; draw < 300; ++draw) {
    const PhiloxBlock random = philox(31, draw, 0);
    const int64_t ranks = 1 + random[0] % 12, microbatches = 1 + random[1] % 40;
    const uint32_t kind = random[2] % (kSchedules.size() + 1);
    const Schedule whole = kind < kSchedules.size() ? training(kSchedules[kind], ranks, microbatches)
                                                    : evaluation(ranks, microbatches, 1 + random[2] % 3);
    const size_t rank = random[3] % whole.lists.size();
    const size_t place = philox(31, draw, 1)[0] % whole.lists[rank].size();
    const Action action = whole.lists[rank][place];
    CAPTURE(ranks, microbatches, kind, rank, to_string(action));
    Schedule less = whole, more = whole;
    drop(less[rank], action);
    repeat(more[rank], action);
    CHECK(!less.problem().empty());
    CHECK(!more.problem().empty());
  }
}

TEST_CASE("two messages on their way are enough but where a rank meets a message before it gives back",
          "[quick][pipeline]") {
  for (const PipelineSchedule schedule : kSchedules)
    for (int64_t ranks = 1; ranks <= 6; ++ranks)
      for (const int64_t microbatches : {1, 2, 5, 12}) {
        CAPTURE(ranks, microbatches);
        const int64_t most = schedule == PipelineSchedule::zero_bubble_v ? 4 * ranks : 2;
        CHECK(messages_under_way(training(schedule, ranks, microbatches)) <= most);
        CHECK(messages_under_way(evaluation(ranks, microbatches, 2)) == 2);
        CHECK(messages_under_way(evaluation(ranks, microbatches, 2, StagePlacement::Shape::vee)) == 2);
      }
}

TEST_CASE("a plan whose messages pile up says how many there are", "[quick][pipeline]") {
  // Rank 0 receives nothing back from rank 1 before it has sent all of its first stage's messages.
  const int64_t few = messages_under_way(training(PipelineSchedule::gpipe, 2, 12, 2)),
                many = messages_under_way(training(PipelineSchedule::gpipe, 2, 120, 2));
  CHECK(few > 2);
  CHECK(many > 5 * few);
  CHECK(many <= 120);
}

TEST_CASE("a plan that is not right has no number of messages", "[quick][pipeline]") {
  Schedule schedule = training(PipelineSchedule::gpipe, 2, 2);
  drop(schedule[0], {Kind::send_activation, 0, 1});
  CHECK_THROWS_AS(messages_under_way(schedule), CheckFailure);
}

}  // namespace quintet::pipeline
