#include "lib/mesh/mesh.h"

#include <algorithm>
#include <set>

#include <catch2/catch.hpp>

#include "lib/base/error.h"

namespace quintet {
namespace {
constexpr std::array<Axis, kAxisCount> kOrder = {Axis::tp, Axis::cp, Axis::ep, Axis::dp, Axis::pp};
const PerAxis<int64_t> kSizes = {{2, 3, 2, 1, 2}};  // dp, tp, pp, ep, cp
}  // namespace

TEST_CASE("a rank and its coordinate stand for each other", "[quick][mesh]") {
  const Mesh mesh(kSizes, kOrder);
  REQUIRE(mesh.world_size() == 24);
  for (int64_t rank = 0; rank < 24; ++rank) REQUIRE(mesh.rank_of(mesh.coordinate_of(rank)) == rank);
}

TEST_CASE("the first axis of the order joins adjacent ranks", "[quick][mesh]") {
  const Mesh mesh(kSizes, kOrder);
  REQUIRE(mesh.group_of(0, {Axis::tp}) == std::vector<int64_t>{0, 1, 2});
  REQUIRE(mesh.group_of(4, {Axis::cp}) == std::vector<int64_t>{1, 4});
  REQUIRE(mesh.group_of(5, {Axis::pp}) == std::vector<int64_t>{5, 17});
}

TEST_CASE("the groups of any set of axes cover the world once, and their members agree on them", "[quick][mesh]") {
  const Mesh mesh(kSizes, kOrder);
  for (const AxisSet axes : {AxisSet{}, AxisSet{Axis::dp}, AxisSet{Axis::dp, Axis::ep, Axis::cp},
                             AxisSet{Axis::tp, Axis::pp}, AxisSet::all()}) {
    std::set<std::vector<int64_t>> groups;
    for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
      const std::vector<int64_t> group = mesh.group_of(rank, axes);
      REQUIRE(static_cast<int64_t>(group.size()) == mesh.size(axes));
      REQUIRE(std::is_sorted(group.begin(), group.end()));
      REQUIRE(std::count(group.begin(), group.end(), rank) == 1);
      for (const int64_t member : group) REQUIRE(mesh.group_of(member, axes) == group);
      groups.insert(group);
    }
    REQUIRE(static_cast<int64_t>(groups.size()) * mesh.size(axes) == mesh.world_size());
  }
}

TEST_CASE("a block is consecutive places of its axis, and the blocks share the axis out", "[quick][mesh]") {
  const Mesh mesh({{2, 6, 2, 1, 1}}, {Axis::dp, Axis::tp, Axis::cp, Axis::ep, Axis::pp});
  REQUIRE(mesh.block_of(0, Axis::tp, 3) == std::vector<int64_t>{0, 2, 4});
  REQUIRE(mesh.block_of(7, Axis::tp, 3) == std::vector<int64_t>{7, 9, 11});
  REQUIRE(mesh.block_of(21, Axis::tp, 2) == std::vector<int64_t>{21, 23});
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    REQUIRE(mesh.block_of(rank, Axis::tp, 1) == std::vector<int64_t>{rank});
    REQUIRE(mesh.block_of(rank, Axis::tp, 6) == mesh.group_of(rank, {Axis::tp}));
    for (const int64_t size : {2, 3}) {
      const std::vector<int64_t> block = mesh.block_of(rank, Axis::tp, size);
      for (const int64_t member : block) {
        REQUIRE(mesh.block_of(member, Axis::tp, size) == block);
        REQUIRE(mesh.coordinate_of(member)[Axis::tp] / size == mesh.coordinate_of(rank)[Axis::tp] / size);
      }
    }
  }
  REQUIRE_THROWS_AS(mesh.block_of(0, Axis::tp, 4), CheckFailure);
}

TEST_CASE("the ends of an axis are its first and last rank, for every rank along it", "[quick][mesh]") {
  const Mesh mesh({{1, 2, 4, 1, 2}}, kOrder);  // pp strides 4
  for (const int64_t rank : {1, 5, 9, 13}) REQUIRE(mesh.ends_of(rank, Axis::pp) == std::vector<int64_t>{1, 13});
  REQUIRE(mesh.ends_of(14, Axis::tp) == std::vector<int64_t>{14, 15});
  REQUIRE(mesh.ends_of(14, Axis::dp) == std::vector<int64_t>{14});
}

TEST_CASE("labels name the axes of more than one rank", "[quick][mesh]") {
  REQUIRE(Mesh(kSizes, kOrder).label_of(23) == "rank 23 (dp 1, tp 2, pp 1, cp 1)");
  REQUIRE(Mesh({{1, 1, 1, 1, 1}}, kOrder).label_of(0) == "rank 0");
  REQUIRE(name_of(AxisSet{Axis::cp, Axis::dp}) == "dp+cp");
}

TEST_CASE("an order that names an axis twice is a broken invariant", "[quick][mesh]") {
  REQUIRE_THROWS_AS(Mesh(kSizes, {Axis::tp, Axis::tp, Axis::ep, Axis::dp, Axis::pp}), CheckFailure);
}

}  // namespace quintet
