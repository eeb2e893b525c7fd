#include "lib/parallel/parameter.h"

#include <array>

#include "lib/base/integers.h"

namespace quintet::parallel {
namespace {

constexpr std::array kDataAxes = {Axis::dp, Axis::ep, Axis::cp};

Shape from_sizes(const std::array<int64_t, 2>& sizes, int rank) {
  return rank == 1 ? Shape{sizes[0]} : Shape{sizes[0], sizes[1]};
}

}  // namespace

int64_t Placement::copies(int64_t ranks) const {
  switch (kind) {
    case Kind::same:
    case Kind::parts: return ranks;
    case Kind::end_parts: return std::min<int64_t>(ranks, 2);
    case Kind::split: return pieces == 0 ? 1 : div_exact(ranks, pieces);
    case Kind::one_holder: return 1;
  }
  QUINTET_CHECK(false, "unknown placement");
}

int64_t Placement::holder(int64_t ranks) const { return index / div_exact(count, ranks); }

PerAxis<Placement> placements(Placement along_tp) {
  PerAxis<Placement> along;
  for (const Axis axis : kDataAxes) along[axis] = Placement::parts();
  along[Axis::tp] = along_tp;
  along[Axis::pp] = Placement::one_holder();
  return along;
}

AxisSet ParameterSpec::data_axes() const {
  AxisSet axes;
  for (const Axis axis : kDataAxes)
    if (along[axis].kind == Placement::Kind::parts) axes = axes.with(axis);
  return axes;
}

GradientSharers gradient_sharers(const ParameterSpec& spec, const Mesh& mesh) {
  for (const Axis axis : {Axis::tp, Axis::pp}) {
    const Placement& placement = spec.along[axis];
    const int64_t copies = placement.copies(mesh.size(axis));
    if (copies > 1 && placement.kind != Placement::Kind::same) return {.axis = axis, .ranks = copies};
  }
  return {};
}

bool is_first_holder(const ParameterSpec& spec, const Mesh& mesh, const Coordinate& coordinate) {
  const Placement &over_pp = spec.along[Axis::pp], &over_ep = spec.along[Axis::ep];
  return coordinate[Axis::tp] % spec.along[Axis::tp].copies(mesh.size(Axis::tp)) == 0 &&
         (over_pp.kind != Placement::Kind::end_parts || coordinate[Axis::pp] == 0) &&
         (!spec.is_expert() || coordinate[Axis::ep] == over_ep.holder(mesh.size(Axis::ep)));
}

Shape shard_shape(const ParameterSpec& spec, const Mesh& mesh) {
  const int rank = spec.shape.rank();
  QUINTET_CHECK(rank == 1 || rank == 2, "{} has {} dimensions", spec.name, rank);
  std::array<int64_t, 2> sizes = {spec.shape[0], rank == 2 ? spec.shape[1] : 1};
  for (const Axis axis : kAxes) {
    const Placement& placement = spec.along[axis];
    if (placement.kind != Placement::Kind::split) continue;
    int64_t& size = sizes[static_cast<size_t>(placement.dimension)];
    const int64_t whole = placement.padded == 0 ? size : placement.padded;
    size = div_exact(whole, mesh.size(axis) / placement.copies(mesh.size(axis)));
  }
  return from_sizes(sizes, rank);
}

}  // namespace quintet::parallel
