#include "lib/parallel/element_runs.h"

#include <algorithm>
#include <array>

namespace quintet::parallel {

void for_each_run(const ParameterSpec& spec, const Mesh& mesh, const Coordinate& coordinate, int64_t begin,
                  int64_t count, const std::function<void(const ElementRun&)>& f) {
  const Shape local = shard_shape(spec, mesh);
  std::array<int64_t, 2> first = {0, 0};  // of the shard, in the whole tensor
  for (const Axis axis : kAxes) {
    const Placement& placement = spec.along[axis];
    if (placement.kind != Placement::Kind::split) continue;
    first[static_cast<size_t>(placement.dimension)] +=
        coordinate[axis] / placement.copies(mesh.size(axis)) * local[placement.dimension];
  }
  const int64_t local_columns = local.rank() == 2 ? local[1] : 1, columns = local.rank() == 2 ? spec.shape[1] : 1;
  const int64_t rows_there = std::clamp<int64_t>(spec.shape[0] - first[0], 0, local[0]);
  const int64_t columns_there = std::clamp<int64_t>(columns - first[1], 0, local_columns);
  if (columns_there == 0) return;
  const int64_t end = std::min(begin + count, rows_there * local_columns);
  if (local_columns == columns) {  // rows follow one another without a gap
    if (begin < end) f({.shard = begin, .whole = first[0] * columns + begin, .count = end - begin});
    return;
  }
  for (int64_t row = begin / local_columns; row * local_columns < end; ++row) {
    const int64_t row_begin = row * local_columns;
    const int64_t from = std::max(begin, row_begin), to = std::min(end, row_begin + columns_there);
    if (from >= to) continue;
    f({.shard = from, .whole = (first[0] + row) * columns + first[1] + from - row_begin, .count = to - from});
  }
}

void for_each_run(const ParameterSpec& spec, const Mesh& mesh, const Coordinate& coordinate,
                  const std::function<void(const ElementRun&)>& f) {
  for_each_run(spec, mesh, coordinate, 0, shard_shape(spec, mesh).elements(), f);
}

}  // namespace quintet::parallel
