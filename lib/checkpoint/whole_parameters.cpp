#include "lib/checkpoint/whole_parameters.h"

#include <algorithm>
#include <cstring>

#include "lib/parallel/element_runs.h"

namespace quintet::checkpoint {

WholeParameters::WholeParameters(const std::vector<pipeline::ModelParameter>& all, comm::Communicator& communicator,
                                 device::Device& device, const parallel::ParameterStore& own,
                                 optimizer::ZeroOptimizer& optimizer)
    : communicator_(communicator), device_(device), optimizer_(optimizer), types_(own.types()) {
  for (const pipeline::ModelParameter& parameter : all) all_.emplace(parameter.spec.name, parameter);
  for (const parallel::Parameter& parameter : own.parameters()) own_.emplace(parameter.name(), &parameter);
}

Tensor WholeParameters::gather(const std::string& name, Values values) {
  const pipeline::ModelParameter& parameter = all_.at(name);
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

DType WholeParameters::type_of(const pipeline::ModelParameter& parameter, Values values) const {
  if (!parameter.spec.trained) return types_.statistics;
  return values == Values::weights ? types_.compute : types_.gradients;
}

void WholeParameters::place(const pipeline::ModelParameter& parameter, const Coordinate& holder, Tensor shard) {
  const int64_t element_bytes = size_of(shard.dtype());
  whole_.resize(static_cast<size_t>(parameter.spec.shape.elements() * element_bytes));
  parallel::for_each_run(parameter.spec, communicator_.mesh(), holder, [&](const parallel::ElementRun& run) {
    std::memcpy(whole_.data() + run.whole * element_bytes, shard_.data() + run.shard * element_bytes,
                static_cast<size_t>(run.count * element_bytes));
  });
}

}  // namespace quintet::checkpoint
