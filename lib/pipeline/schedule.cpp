#include "lib/pipeline/schedule.h"

#include <algorithm>
#include <array>

#include "lib/base/error.h"
#include "lib/pipeline/transfers.h"

namespace quintet::pipeline {
namespace {

using config::PipelineSchedule;
using Kind = Action::Kind;

// All forwards, then all backwards, both first in first out (Huang et al. 2019). Three ranks, four microbatches; a
// backward takes twice as long as a forward:
//
//   rank 0  0 1 2 3                 0 0 1 1 2 2 3 3
//   rank 1    0 1 2 3           0 0 1 1 2 2 3 3
//   rank 2      0 1 2 3 0 0 1 1 2 2 3 3
//               forwards  backwards
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
//   rank 0  0 1 2         0 0 3 1 1   2 2   3 3
//   rank 1    0 1     0 0 2 1 1 3 2 2   3 3
//   rank 2      0 0 0 1 1 1 2 2 2 3 3 3
//               F B B F B B
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

struct Schedule {
  PipelineSchedule name;
  StagePlacement::Shape shape;
  ActionLists (*computations)(const StagePlacement& placement, int64_t microbatches);
  int64_t (*most_kept)(const StagePlacement& placement, int64_t rank, int64_t microbatches);
};

constexpr std::array kSchedules = {
    Schedule{PipelineSchedule::gpipe, StagePlacement::Shape::loop, gpipe, gpipe_keeps},
    Schedule{PipelineSchedule::one_f_one_b, StagePlacement::Shape::loop, one_f_one_b, one_f_one_b_keeps},
};

const Schedule& schedule_of(PipelineSchedule name) {
  const auto* const found = std::find_if(kSchedules.begin(), kSchedules.end(),
                                         [name](const Schedule& schedule) { return schedule.name == name; });
  QUINTET_CHECK(found != kSchedules.end(), "no such schedule is built");
  return *found;
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
  return {.shape = schedule_of(config.parallel.pipeline.schedule).shape,
          .ranks = config.mesh.pp,
          .chunks = config.parallel.pipeline.virtual_stages};
}

}  // namespace quintet::pipeline
