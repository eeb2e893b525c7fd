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

TEST_CASE("labels name the axes of more than one rank", "[quick][mesh]") {
  REQUIRE(Mesh(kSizes, kOrder).label_of(23) == "rank 23 (dp 1, tp 2, pp 1, cp 1)");
  REQUIRE(Mesh({{1, 1, 1, 1, 1}}, kOrder).label_of(0) == "rank 0");
  REQUIRE(name_of(AxisSet{Axis::cp, Axis::dp}) == "dp+cp");
}

TEST_CASE("an order that names an axis twice is a broken invariant", "[quick][mesh]") {
  REQUIRE_THROWS_AS(Mesh(kSizes, {Axis::tp, Axis::tp, Axis::ep, Axis::dp, Axis::pp}), CheckFailure);
}

}  // namespace quintet
