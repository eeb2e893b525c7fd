#include "lib/pipeline/model_parameters.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <iterator>

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

WholeParameters::WholeParameters(const std::vector<ModelParameter>& all, comm::Communicator& communicator,
                                 device::Device& device, const parallel::ParameterStore& own,
                                 optimizer::ZeroOptimizer& optimizer)
    : communicator_(communicator), device_(device), optimizer_(optimizer), types_(own.types()) {
  for (const ModelParameter& parameter : all) all_.emplace(parameter.spec.name, parameter);
  for (const parallel::Parameter& parameter : own.parameters()) own_.emplace(parameter.name(), &parameter);
}

Tensor WholeParameters::gather(const std::string& name, Values values) {
  const ModelParameter& parameter = all_.at(name);
  const Mesh& mesh = communicator_.mesh();
  const int64_t rank = communicator_.placement().rank;
  const Shape shape = parallel::shard_shape(parameter.spec, mesh);
  const DType dtype = type_of(parameter, values);
  for (int64_t place_along_tp = 0; place_along_tp < mesh.size(Axis::tp); ++place_along_tp) {
    Coordinate holder;
    holder[Axis::tp] = place_along_tp;
    holder[Axis::pp] = parameter.pipeline_rank;
    if (parameter.spec.is_expert()) holder[Axis::ep] = parameter.spec.along[Axis::ep].holder(mesh.size(Axis::ep));
    if (!parallel::is_first_holder(parameter.spec, mesh, holder)) continue;
    const int64_t from = mesh.rank_of(holder);
    // Data ranks bring together what each of them has of the shard.
    const std::vector<int64_t> sharers = mesh.group_of(from, parameter.spec.data_axes());
    Tensor own;
    if (std::binary_search(sharers.begin(), sharers.end(), rank))
      own = optimizer_.whole(*own_.at(name), values, gathered_);
    if (rank != 0 && rank != from) continue;
    shard_.resize(static_cast<size_t>(shape.elements() * size_of(dtype)));
    const Tensor shard(shard_.data(), dtype, shape);
    if (rank == from) device_.copy(own, shard);
    if (rank != from) communicator_.world().receive(shard, from, "shard of " + name).wait();
    if (rank == 0) place(parameter, holder, shard);
    if (rank == from && rank != 0) communicator_.world().send(shard, 0, "shard of " + name).wait();
  }
  return rank == 0 ? Tensor(whole_.data(), dtype, parameter.spec.shape) : Tensor{};
}

DType WholeParameters::type_of(const ModelParameter& parameter, Values values) const {
  if (!parameter.spec.trained) return types_.statistics;
  return values == Values::weights ? types_.compute : types_.gradients;
}

void WholeParameters::place(const ModelParameter& parameter, const Coordinate& holder, Tensor shard) {
  const auto element_bytes = static_cast<size_t>(size_of(shard.dtype()));
  whole_.resize(static_cast<size_t>(parameter.spec.shape.elements()) * element_bytes);
  for (int64_t i = 0; i < shard.elements(); ++i) {
    const int64_t element = parallel::global_element(parameter.spec, communicator_.mesh(), holder, i);
    if (element == parallel::kPadding) continue;
    std::memcpy(whole_.data() + static_cast<size_t>(element) * element_bytes,
                shard_.data() + static_cast<size_t>(i) * element_bytes, element_bytes);
  }
}

}  // namespace quintet::pipeline
