#include "lib/mesh/mesh.h"

#include <algorithm>

#include "lib/base/error.h"

namespace quintet {

std::string name_of(AxisSet axes) {
  std::string name;
  for (const Axis axis : kAxes) {
    if (!axes.contains(axis)) continue;
    if (!name.empty()) name += '+';
    name += name_of(axis);
  }
  return name;
}

Mesh::Mesh(const PerAxis<int64_t>& sizes, const std::array<Axis, kAxisCount>& order) : sizes_(sizes), order_(order) {
  for (const Axis axis : order) {
    QUINTET_CHECK(sizes_[axis] >= 1, "axis {} has size {}", name_of(axis), sizes_[axis]);
    QUINTET_CHECK(strides_[axis] == 0, "axis {} stands twice in the order", name_of(axis));
    strides_[axis] = world_size_;
    world_size_ *= sizes_[axis];
  }
}

int64_t Mesh::size(AxisSet axes) const {
  int64_t size = 1;
  for (const Axis axis : kAxes)
    if (axes.contains(axis)) size *= sizes_[axis];
  return size;
}

Coordinate Mesh::coordinate_of(int64_t rank) const {
  QUINTET_CHECK(rank >= 0 && rank < world_size_, "rank {} of {}", rank, world_size_);
  Coordinate coordinate;
  for (const Axis axis : kAxes) coordinate[axis] = rank / strides_[axis] % sizes_[axis];
  return coordinate;
}

int64_t Mesh::rank_of(const Coordinate& coordinate) const {
  int64_t rank = 0;
  for (const Axis axis : kAxes) {
    QUINTET_CHECK(coordinate[axis] >= 0 && coordinate[axis] < sizes_[axis]);
    rank += coordinate[axis] * strides_[axis];
  }
  return rank;
}

std::vector<int64_t> Mesh::group_of(int64_t rank, AxisSet axes) const {
  const Coordinate own = coordinate_of(rank);
  std::vector<int64_t> members = {rank};
  for (const Axis axis : kAxes) {
    if (!axes.contains(axis)) continue;
    std::vector<int64_t> wider;
    for (const int64_t member : members)
      for (int64_t place = 0; place < sizes_[axis]; ++place)
        wider.push_back(member + (place - own[axis]) * strides_[axis]);
    members = std::move(wider);
  }
  std::sort(members.begin(), members.end());
  return members;
}

std::vector<int64_t> Mesh::block_of(int64_t rank, Axis axis, int64_t size) const {
  QUINTET_CHECK(size >= 1 && sizes_[axis] % size == 0, "blocks of {} on axis {} of size {}", size, name_of(axis),
                sizes_[axis]);
  const std::vector<int64_t> line = group_of(rank, {axis});
  const auto first = line.begin() + coordinate_of(rank)[axis] / size * size;
  return {first, first + size};
}

std::vector<int64_t> Mesh::ends_of(int64_t rank, Axis axis) const {
  std::vector<int64_t> line = group_of(rank, {axis});
  if (line.size() == 1) return line;
  return {line.front(), line.back()};
}

std::string Mesh::label_of(int64_t rank) const {
  const Coordinate coordinate = coordinate_of(rank);
  std::string places;
  for (const Axis axis : kAxes)
    if (sizes_[axis] > 1) places += fmt::format("{}{} {}", places.empty() ? "" : ", ", name_of(axis), coordinate[axis]);
  return places.empty() ? fmt::format("rank {}", rank) : fmt::format("rank {} ({})", rank, places);
}

}  // namespace quintet
