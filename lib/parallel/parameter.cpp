#include "lib/parallel/parameter.h"

#include <array>

#include "lib/base/integers.h"

namespace quintet::parallel {
namespace {

Shape from_sizes(const std::array<int64_t, 2>& sizes, int rank) {
  return rank == 1 ? Shape{sizes[0]} : Shape{sizes[0], sizes[1]};
}

// Ranks along the axis that share a piece.
int64_t block_size(const ShardedBy& shard, const Mesh& mesh) {
  const int64_t ranks = mesh.size(shard.axis);
  return shard.pieces == 0 ? 1 : div_exact(ranks, shard.pieces);
}

int64_t replicas_over_tp(const ParameterSpec& spec, const Mesh& mesh) {
  for (const ShardedBy& shard : spec.shards)
    if (shard.axis == Axis::tp) return block_size(shard, mesh);
  return mesh.size(Axis::tp);
}

}  // namespace

int64_t Expert::rank_of(const Mesh& mesh) const { return index / div_exact(count, mesh.size(Axis::ep)); }

int64_t Parameter::tensor_replicas(const Mesh& mesh) const { return replicas_over_tp(spec_, mesh); }

bool is_first_holder(const ParameterSpec& spec, const Mesh& mesh, const Coordinate& coordinate) {
  return coordinate[Axis::tp] % replicas_over_tp(spec, mesh) == 0 &&
         (!spec.sums_over_ends || coordinate[Axis::pp] == 0) &&
         (!spec.expert || coordinate[Axis::ep] == spec.expert->rank_of(mesh));
}

Shape shard_shape(const ParameterSpec& spec, const Mesh& mesh) {
  const int rank = spec.shape.rank();
  QUINTET_CHECK(rank == 1 || rank == 2, "{} has {} dimensions", spec.name, rank);
  std::array<int64_t, 2> sizes = {spec.shape[0], rank == 2 ? spec.shape[1] : 1};
  for (const ShardedBy& shard : spec.shards) {
    int64_t& size = sizes[static_cast<size_t>(shard.dimension)];
    const int64_t whole = shard.padded == 0 ? size : shard.padded;
    size = div_exact(whole, mesh.size(shard.axis) / block_size(shard, mesh));
  }
  return from_sizes(sizes, rank);
}

int64_t global_element(const ParameterSpec& spec, const Mesh& mesh, const Coordinate& coordinate, int64_t index) {
  const Shape local = shard_shape(spec, mesh);
  const bool is_matrix = local.rank() == 2;
  std::array<int64_t, 2> place = {is_matrix ? index / local[1] : index, is_matrix ? index % local[1] : 0};
  for (const ShardedBy& shard : spec.shards) {
    int64_t& at = place[static_cast<size_t>(shard.dimension)];
    at += coordinate[shard.axis] / block_size(shard, mesh) * local[shard.dimension];
    if (at >= spec.shape[shard.dimension]) return kPadding;
  }
  return is_matrix ? place[0] * spec.shape[1] + place[1] : place[0];
}

}  // namespace quintet::parallel
