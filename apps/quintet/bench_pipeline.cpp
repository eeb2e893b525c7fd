#include "apps/quintet/bench_pipeline.h"

#include <array>
#include <string>

#include <fmt/core.h>

#include "lib/config/enums.h"
#include "lib/pipeline/schedule_check.h"
#include "lib/pipeline/schedule_clock.h"

namespace quintet {

int bench_pipeline(const std::vector<int64_t>& ranks_shown, int64_t chunks) {
  using config::PipelineSchedule;
  struct Column {
    PipelineSchedule schedule;
    int64_t chunks;
  };
  const std::array columns = {Column{PipelineSchedule::gpipe, 1}, Column{PipelineSchedule::one_f_one_b, 1},
                              Column{PipelineSchedule::interleaved, chunks}, Column{PipelineSchedule::zero_bubble, 1},
                              Column{PipelineSchedule::zero_bubble_v, 2}};
  fmt::print(
      "idle units of a rank / microbatches that the fullest one keeps; the forward of a rank's layers and each part "
      "of\n"
      "their backward take one unit, interleaved has {} stages a rank\n{:>5} {:>12}",
      chunks, "ranks", "microbatches");
  for (const Column& column : columns) fmt::print(" {:>13}", config::name_of(column.schedule));
  fmt::print("\n");
  for (const int64_t ranks : ranks_shown)
    for (const int64_t times : {1, 2, 4}) {
      fmt::print("{:>5} {:>12}", ranks, times * ranks);
      for (const Column& column : columns) {
        const pipeline::Plan plan = pipeline::plan_training(column.schedule, ranks, column.chunks, times * ranks);
        const std::string problem = pipeline::check_plan(plan);
        QUINTET_CHECK(problem.empty(), "{}", problem);
        fmt::print(" {:>13}",
                   fmt::format("{:.3g} / {:.3g}", pipeline::idle_units(plan), pipeline::most_microbatches_kept(plan)));
      }
      fmt::print("\n");
    }
  return 0;
}

void show_pipeline(comm::Communicator& communicator, const config::Config& config, int64_t microbatches,
                   const pipeline::Executor::ComputedSeconds& own_seconds, double seconds) {
  const pipeline::Plan plan = pipeline::plan_training(config, microbatches);
  const int64_t stages = plan.placement.stages();
  if (stages == 1) return;
  // Of a microbatch, by kind and stage; the slowest of the ranks that hold the stage.
  std::vector<double> costs(static_cast<size_t>(pipeline::Action::kKinds * stages), 0);
  const auto cost = [&](pipeline::Action::Kind kind, int64_t stage) -> double& {
    return costs[static_cast<size_t>(static_cast<int64_t>(kind) * stages + stage)];
  };
  for (const auto& [computation, total] : own_seconds)
    cost(computation.first, computation.second) = total / static_cast<double>(microbatches);
  communicator.world()
      .all_reduce(Tensor(costs.data(), DType::fp64, {std::ssize(costs)}), comm::Reduction::max, "stage times")
      .wait();
  if (communicator.placement().rank != 0) return;
  std::string text;
  for (int64_t stage = 0; stage < stages; ++stage) {
    double time = 0;
    for (int64_t kind = 0; kind < pipeline::Action::kKinds; ++kind)
      time += cost(static_cast<pipeline::Action::Kind>(kind), stage);
    text += fmt::format("{}{:.2f}", stage == 0 ? "" : " + ", 1e3 * time);
  }
  const double bound =
      pipeline::play(plan, [&](const pipeline::Action& action) { return cost(action.kind, action.stage); });
  fmt::print("pipeline: stages of {} ms a microbatch; {} microbatches take {:.1f} ms, at best {:.1f}: {:.1f}%\n", text,
             microbatches, 1e3 * seconds, 1e3 * bound, 100 * bound / seconds);
}

}  // namespace quintet
