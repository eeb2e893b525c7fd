#include "lib/pipeline/model_parameters.h"

#include <deque>

#include "lib/pipeline/schedule.h"
#include "lib/pipeline/stage_split.h"

namespace quintet::pipeline {

model::StagePart part_of_stage(const config::Config& config, int64_t stage) {
  const std::vector<int64_t> layers = layers_of_stages(config);
  model::StagePart part{.first_layer = 0,
                        .layers = layers[static_cast<size_t>(stage)],
                        .is_first = stage == 0,
                        .is_last = stage + 1 == std::ssize(layers)};
  for (int64_t before = 0; before < stage; ++before) part.first_layer += layers[static_cast<size_t>(before)];
  return part;
}

std::vector<ModelParameter> model_parameters(const config::Config& config, const Mesh& mesh) {
  // With one rank along ep the experts of all are declared, each in its layer's place.
  PerAxis<int64_t> sizes;
  for (const Axis axis : kAxes) sizes[axis] = axis == Axis::ep ? 1 : mesh.size(axis);
  const Mesh without_ep(sizes, mesh.order());
  const model::RopeTable no_table;
  const StagePlacement placement = placement_of(config);
  // One on each rank.
  std::deque<parallel::ParameterStore> stores;
  std::vector<std::deque<model::Stage>> stages(static_cast<size_t>(placement.ranks));
  for (int64_t rank = 0; rank < placement.ranks; ++rank) {
    Coordinate coordinate;
    coordinate[Axis::pp] = rank;
    stores.emplace_back(without_ep, coordinate);
  }
  std::vector<ModelParameter> all;
  for (int64_t stage = 0; stage < placement.stages(); ++stage) {
    const int64_t rank = placement.rank_of(stage);
    parallel::ParameterStore& store = stores[static_cast<size_t>(rank)];
    std::deque<model::Stage>& declared = stages[static_cast<size_t>(rank)];
    const size_t before = store.parameters().size();
    declared.emplace_back(store, config, no_table, part_of_stage(config, stage),
                          declared.empty() ? nullptr : declared.front().embedding());
    for (size_t i = before; i < store.parameters().size(); ++i) {
      const parallel::ParameterSpec& spec = store.parameters()[i].spec();
      if (parallel::is_first_holder(spec, without_ep, store.coordinate())) all.push_back({spec, stage, rank});
    }
  }
  return all;
}

}  // namespace quintet::pipeline
