#include "lib/pipeline/schedule.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "lib/base/error.h"
#include "lib/pipeline/transfers.h"

namespace quintet::pipeline {
namespace {

using config::PipelineSchedule;
using Kind = Action::Kind;

// In the pictures time runs to the right: digits are forwards of microbatches 0, 1, 2, 3, capitals A, B, C, D their
// backwards, which take twice as long where they are whole.

// All forwards, then all backwards, both first in first out (Huang et al. 2019):
//
//   rank 0  0 1 2 3             A A B B C C D D
//   rank 1    0 1 2 3       A A B B C C D D
//   rank 2      0 1 2 3 A A B B C C D D
ActionLists gpipe(const StagePlacement& placement, int64_t microbatches) {
  ActionLists lists;
  for (int64_t rank = 0; rank < placement.ranks; ++rank) {
    std::vector<Action>& list = lists.emplace_back();
    const std::vector<int64_t> stages = placement.stages_of(rank);
    for (const int64_t stage : stages)
      for (int64_t i = 0; i < microbatches; ++i) list.push_back({Kind::forward, stage, i});
    for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage)
      for (int64_t i = 0; i < microbatches; ++i) list.push_back({Kind::backward, *stage, i});
  }
  return lists;
}

int64_t gpipe_keeps(const StagePlacement& placement, int64_t /*rank*/, int64_t microbatches) {
  return placement.chunks * microbatches;
}

// One-forward-one-backward (Narayanan et al. 2021, section 2.2.1): after ranks - rank - 1 warm-up forwards each rank
// alternates, so that it never keeps more than ranks - rank microbatches. As idle as gpipe:
//
//   rank 0  0 1 2         A A 3 B B   C C   D D
//   rank 1    0 1     A A 2 B B 3 C C   D D
//   rank 2      0 A A 1 B B 2 C C 3 D D
ActionLists one_f_one_b(const StagePlacement& placement, int64_t microbatches) {
  QUINTET_CHECK(placement.chunks == 1, "1f1b has one stage a rank, not {}", placement.chunks);
  ActionLists lists;
  for (int64_t rank = 0; rank < placement.ranks; ++rank) {
    std::vector<Action>& list = lists.emplace_back();
    const int64_t warmup = std::min(placement.ranks - rank - 1, microbatches);
    int64_t forwards = 0, backwards = 0;
    while (forwards < warmup) list.push_back({Kind::forward, rank, forwards++});
    while (forwards < microbatches) {
      list.push_back({Kind::forward, rank, forwards++});
      list.push_back({Kind::backward, rank, backwards++});
    }
    while (backwards < microbatches) list.push_back({Kind::backward, rank, backwards++});
  }
  return lists;
}

int64_t one_f_one_b_keeps(const StagePlacement& placement, int64_t rank, int64_t microbatches) {
  return std::min(placement.ranks - rank, microbatches);
}

// Which computations are done, while lists are being made.
class Progress {
 public:
  Progress(const StagePlacement& placement, int64_t microbatches)
      : placement_(placement),
        microbatches_(microbatches),
        done_(static_cast<size_t>(4 * placement.stages() * microbatches), false) {}

  // Whether all that the computation needs is there, on whatever rank.
  bool ready(const Action& action) const {
    const auto [kind, stage, i] = action;
    if (kind == Kind::forward) return stage == 0 || done({Kind::forward, stage - 1, i});
    if (kind == Kind::backward_weight) return done({Kind::backward_input, stage, i});
    return done({Kind::forward, stage, i}) && (stage == placement_.last_stage() || done({kind, stage + 1, i}));
  }
  bool done(const Action& action) const { return done_[index_of(action)]; }
  void run(const Action& action) { done_[index_of(action)] = true; }

 private:
  size_t index_of(const Action& action) const {
    return static_cast<size_t>(
        (static_cast<int64_t>(action.kind) * placement_.stages() + action.stage) * microbatches_ + action.microbatch);
  }
  const StagePlacement& placement_;
  int64_t microbatches_;
  std::vector<bool> done_;  // by kind, stage and microbatch
};

// A rank's forwards or backwards where microbatches go round in groups of as many as there are ranks, the last group of
// what is left: a group through one of its stages, then through the next.
std::vector<Action> in_groups(const StagePlacement& placement, int64_t rank, int64_t microbatches, Kind kind) {
  std::vector<int64_t> stages = placement.stages_of(rank);
  if (kind != Kind::forward) std::reverse(stages.begin(), stages.end());
  std::vector<Action> actions;
  for (int64_t first = 0; first < microbatches; first += placement.ranks)
    for (const int64_t stage : stages)
      for (int64_t i = first; i < std::min(first + placement.ranks, microbatches); ++i)
        actions.push_back({kind, stage, i});
  return actions;
}

int64_t interleaved_warmup(const StagePlacement& placement, int64_t rank) {
  return (placement.ranks - rank - 1) * 2 + (placement.chunks - 1) * placement.ranks;
}

// Interleaved 1F1B (Narayanan et al. 2021, section 2.2.2): a rank holds several stages, which follow one another round
// the ranks, so that filling and draining the pipeline takes a stage's share of the time. Two ranks of two stages,
// those of the second with primes:
//
//   rank 0  0 1 0'1'    A'A'  B'B'A A B B
//   rank 1    0 1 0'A'A'1'B'B'A A B B
//
// Where the last group of microbatches is smaller, the published warm-up would have ranks wait for each other: one
// rank's forward for another's, which comes after a backward that waits for one of the first rank. That goes first
// then.
ActionLists interleaved(const StagePlacement& placement, int64_t microbatches) {
  struct Rank {
    std::vector<Action> forwards, backwards;
    size_t run_forwards = 0, run_backwards = 0, warmup = 0;

    bool ended() const { return run_backwards == backwards.size(); }
    // After the warm-up a forward and a backward take turns.
    bool forward_is_next() const { return run_forwards < forwards.size() && run_forwards - run_backwards <= warmup; }
    bool has_backward() const { return run_backwards < run_forwards; }
  };
  std::vector<Rank> ranks;
  for (int64_t rank = 0; rank < placement.ranks; ++rank)
    ranks.push_back({.forwards = in_groups(placement, rank, microbatches, Kind::forward),
                     .backwards = in_groups(placement, rank, microbatches, Kind::backward),
                     .warmup = static_cast<size_t>(interleaved_warmup(placement, rank))});
  Progress progress(placement, microbatches);
  ActionLists lists(ranks.size());
  const auto run_if_ready = [&](size_t rank, bool forward) {
    Rank& on = ranks[rank];
    const Action& action = forward ? on.forwards[on.run_forwards] : on.backwards[on.run_backwards];
    if (!progress.ready(action)) return false;
    progress.run(action);
    lists[rank].push_back(action);
    ++(forward ? on.run_forwards : on.run_backwards);
    return true;
  };
  const auto unended = [&] {
    return std::any_of(ranks.begin(), ranks.end(), [](const Rank& on) { return !on.ended(); });
  };
  while (unended()) {
    bool moved = false;
    for (size_t rank = 0; rank < ranks.size(); ++rank)
      while (!ranks[rank].ended() && run_if_ready(rank, ranks[rank].forward_is_next())) moved = true;
    for (size_t rank = 0; rank < ranks.size() && !moved; ++rank)
      moved = ranks[rank].has_backward() && run_if_ready(rank, /*forward=*/false);
    QUINTET_CHECK(moved, "interleaved: ranks wait for each other");
  }
  return lists;
}

int64_t interleaved_keeps(const StagePlacement& placement, int64_t rank, int64_t microbatches) {
  return std::min(interleaved_warmup(placement, rank) + 1, placement.chunks * microbatches);
}

// ZB-H1 (Qi et al. 2023): 1f1b whose backwards are cut into their parts. Gradients of inputs (capitals) go on at once;
// rank r puts its weight parts (small letters) off by r microbatches, to fill what would be idle at the end:
//
//   rank 0  0 1 2     A a 3 B b C c D d
//   rank 1    0 1   A 2 B a 3 C b D c d
//   rank 2      0 A 1 B 2 C a 3 D b c d
ActionLists zero_bubble(const StagePlacement& placement, int64_t microbatches) {
  QUINTET_CHECK(placement.chunks == 1, "zero_bubble has one stage a rank, not {}", placement.chunks);
  ActionLists lists;
  for (int64_t rank = 0; rank < placement.ranks; ++rank) {
    std::vector<Action>& list = lists.emplace_back();
    const int64_t warmup = std::min(placement.ranks - rank - 1, microbatches);
    int64_t forwards = 0, inputs = 0, weights = 0;
    while (forwards < warmup) list.push_back({Kind::forward, rank, forwards++});
    while (inputs < microbatches) {
      if (forwards < microbatches) list.push_back({Kind::forward, rank, forwards++});
      list.push_back({Kind::backward_input, rank, inputs++});
      if (inputs - weights > rank) list.push_back({Kind::backward_weight, rank, weights++});
    }
    while (weights < microbatches) list.push_back({Kind::backward_weight, rank, weights++});
  }
  return lists;
}

int64_t zero_bubble_keeps(const StagePlacement& placement, int64_t /*rank*/, int64_t microbatches) {
  return std::min(placement.ranks, microbatches);
}

int64_t zero_bubble_v_keeps(const StagePlacement& placement, int64_t /*rank*/, int64_t microbatches) {
  return placement.chunks * std::min(placement.ranks, microbatches);
}

// ZB-V (Qi et al. 2023, section 6): two stages a rank, down the ranks and up again, so that the last stage's gradient
// starts on the rank whose forward came first, and no rank keeps more than 1f1b's first: ranks microbatches, twice half
// the layers. The lists are those of a play in which every computation takes one unit and each rank takes the first
// that is ready of: an input part, the older stage's first; a forward of the second stage; one of the first, where that
// leaves room for the second; a weight part.
ActionLists zero_bubble_v(const StagePlacement& placement, int64_t microbatches) {
  struct Rank {
    int64_t down, up;  // stages
    int64_t kept = 0;  // from their forward to the end of their weight part
  };
  std::vector<Rank> ranks;
  for (int64_t rank = 0; rank < placement.ranks; ++rank)
    ranks.push_back({.down = rank, .up = placement.last_stage() - rank});
  Progress progress(placement, microbatches);
  // The microbatch whose turn it is, of each kind and stage.
  std::map<std::pair<Kind, int64_t>, int64_t> turns;
  const auto next = [&](const Rank& on) -> std::optional<Action> {
    const int64_t most = zero_bubble_v_keeps(placement, 0, placement.ranks);
    struct Choice {
      Kind kind;
      int64_t stage;
      bool allowed = true;
    };
    for (const Choice& choice :
         {Choice{Kind::backward_input, on.down}, Choice{Kind::backward_input, on.up},
          Choice{Kind::forward, on.up, on.kept < most}, Choice{Kind::forward, on.down, on.kept < most - 1},
          Choice{Kind::backward_weight, on.up}, Choice{Kind::backward_weight, on.down}}) {
      const Action action{choice.kind, choice.stage, turns[{choice.kind, choice.stage}]};
      if (choice.allowed && action.microbatch < microbatches && progress.ready(action)) return action;
    }
    return std::nullopt;
  };
  ActionLists lists(ranks.size());
  const auto ended = [&](const std::vector<Action>& list) {
    return std::ssize(list) == 3 * placement.chunks * microbatches;
  };
  while (!std::all_of(lists.begin(), lists.end(), ended)) {
    // All choose by what was done before this unit.
    std::vector<std::optional<Action>> chosen;
    for (const Rank& on : ranks) chosen.push_back(next(on));
    bool moved = false;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      if (!chosen[rank]) continue;
      const Action& action = *chosen[rank];
      progress.run(action);
      lists[rank].push_back(action);
      ++turns[{action.kind, action.stage}];
      if (action.kind == Kind::forward) ++ranks[rank].kept;
      if (action.completes()) --ranks[rank].kept;
      moved = true;
    }
    QUINTET_CHECK(moved, "zero_bubble_v: ranks wait for each other");
  }
  return lists;
}

struct Schedule {
  PipelineSchedule name;
  StagePlacement::Shape shape;
  ActionLists (*computations)(const StagePlacement& placement, int64_t microbatches);
  int64_t (*most_kept)(const StagePlacement& placement, int64_t rank, int64_t microbatches);
};

constexpr std::array kSchedules = {
    Schedule{PipelineSchedule::gpipe, StagePlacement::Shape::loop, gpipe, gpipe_keeps},
    Schedule{PipelineSchedule::one_f_one_b, StagePlacement::Shape::loop, one_f_one_b, one_f_one_b_keeps},
    Schedule{PipelineSchedule::interleaved, StagePlacement::Shape::loop, interleaved, interleaved_keeps},
    Schedule{PipelineSchedule::zero_bubble, StagePlacement::Shape::loop, zero_bubble, zero_bubble_keeps},
    Schedule{PipelineSchedule::zero_bubble_v, StagePlacement::Shape::vee, zero_bubble_v, zero_bubble_v_keeps},
};

const Schedule& schedule_of(PipelineSchedule name) {
  for (const Schedule& schedule : kSchedules)
    if (schedule.name == name) return schedule;
  QUINTET_CHECK(false, "no such schedule is built");
}

// Forwards only: as many microbatches through one stage of a rank as it takes the first of them to come round to the
// rank's next, then as many through that. All ranks follow one order of (group, stage, microbatch), so that no rank
// waits for one that waits for it.
ActionLists forwards(const StagePlacement& placement, int64_t microbatches) {
  const int64_t group = placement.shape == StagePlacement::Shape::loop ? placement.ranks : placement.stages();
  ActionLists lists;
  for (int64_t rank = 0; rank < placement.ranks; ++rank) {
    std::vector<Action>& list = lists.emplace_back();
    for (int64_t first = 0; first < microbatches; first += group)
      for (const int64_t stage : placement.stages_of(rank))
        for (int64_t i = first; i < std::min(first + group, microbatches); ++i)
          list.push_back({Kind::forward, stage, i});
  }
  return lists;
}

}  // namespace

Plan plan_training(PipelineSchedule name, int64_t ranks, int64_t chunks, int64_t microbatches) {
  const Schedule& schedule = schedule_of(name);
  QUINTET_CHECK(schedule.shape == StagePlacement::Shape::loop || chunks == 2, "a V of {} stages a rank", chunks);
  Plan plan{.placement = {.shape = schedule.shape, .ranks = ranks, .chunks = chunks},
            .microbatches = microbatches,
            .lists = {},
            .most_kept = {}};
  plan.lists = with_transfers(schedule.computations(plan.placement, microbatches), plan.placement);
  for (int64_t rank = 0; rank < ranks; ++rank)
    plan.most_kept.push_back(schedule.most_kept(plan.placement, rank, microbatches));
  return plan;
}

Plan plan_training(const config::Config& config, int64_t microbatches) {
  const StagePlacement placement = placement_of(config);
  return plan_training(config.parallel.pipeline.schedule, placement.ranks, placement.chunks, microbatches);
}

Plan plan_evaluation(const StagePlacement& placement, int64_t microbatches) {
  return {.placement = placement,
          .microbatches = microbatches,
          .lists = with_transfers(forwards(placement, microbatches), placement),
          .most_kept = std::vector<int64_t>(static_cast<size_t>(placement.ranks), 0)};
}

StagePlacement placement_of(const config::Config& config) {
  const config::Pipeline& pipeline = config.parallel.pipeline;
  return {.shape = schedule_of(pipeline.schedule).shape, .ranks = config.mesh.pp, .chunks = pipeline.stages_per_rank()};
}

}  // namespace quintet::pipeline
