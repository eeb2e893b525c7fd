#include "lib/parallel/parameter.h"

#include <array>

#include "lib/base/integers.h"

namespace quintet::parallel {
namespace {
Shape from_sizes(const std::array<int64_t, 2>& sizes, int rank) {
  return rank == 1 ? Shape{sizes[0]} : Shape{sizes[0], sizes[1]};
}
}  // namespace

AxisSet Parameter::replicated_over(const Mesh& mesh) const {
  AxisSet axes;
  for (const Axis axis : {Axis::dp, Axis::tp, Axis::ep, Axis::cp})
    if (mesh.size(axis) > 1) axes = axes.with(axis);
  for (const ShardedBy& shard : spec_.shards) axes = axes.without(shard.axis);
  return axes;
}

Shape shard_shape(const ParameterSpec& spec, const Mesh& mesh) {
  const int rank = spec.shape.rank();
  QUINTET_CHECK(rank == 1 || rank == 2, "{} has {} dimensions", spec.name, rank);
  std::array<int64_t, 2> sizes = {spec.shape[0], rank == 2 ? spec.shape[1] : 1};
  for (const ShardedBy& shard : spec.shards) {
    int64_t& size = sizes[static_cast<size_t>(shard.dimension)];
    size = div_exact(size, mesh.size(shard.axis));
  }
  return from_sizes(sizes, rank);
}

int64_t global_element(const ParameterSpec& spec, const Mesh& mesh, const Coordinate& coordinate, int64_t index) {
  const Shape local = shard_shape(spec, mesh);
  const bool is_matrix = local.rank() == 2;
  std::array<int64_t, 2> place = {is_matrix ? index / local[1] : index, is_matrix ? index % local[1] : 0};
  for (const ShardedBy& shard : spec.shards)
    place[static_cast<size_t>(shard.dimension)] += coordinate[shard.axis] * local[shard.dimension];
  return is_matrix ? place[0] * spec.shape[1] + place[1] : place[0];
}

}  // namespace quintet::parallel
