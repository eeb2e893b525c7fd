#include "lib/parallel/element_runs.h"

#include <vector>

#include <catch2/catch.hpp>

#include <fmt/core.h>

namespace quintet::parallel {
namespace {

constexpr std::array<Axis, kAxisCount> kOrder = {Axis::tp, Axis::cp, Axis::ep, Axis::dp, Axis::pp};
constexpr int64_t kNowhere = -1;

// The element of the whole tensor at each place of a shard, kNowhere in padding.
std::vector<int64_t> places(const ParameterSpec& spec, const Mesh& mesh, int64_t rank, int64_t begin, int64_t count) {
  std::vector<int64_t> found(static_cast<size_t>(count), kNowhere);
  int64_t end = begin;
  for_each_run(spec, mesh, mesh.coordinate_of(rank), begin, count, [&](const ElementRun& run) {
    REQUIRE(run.shard >= end);
    REQUIRE(run.count >= 1);
    end = run.shard + run.count;
    REQUIRE(end <= begin + count);
    for (int64_t i = 0; i < run.count; ++i) found[static_cast<size_t>(run.shard - begin + i)] = run.whole + i;
  });
  return found;
}

// By the definition, element by element: `split` is the dimension.
std::vector<int64_t> expected_places(const ParameterSpec& spec, const Mesh& mesh, int64_t rank) {
  const Shape local = shard_shape(spec, mesh);
  const Placement& along = spec.along[Axis::tp];
  const int64_t piece = rank / along.copies(mesh.size(Axis::tp));
  const int64_t rows = local[0], columns = local.rank() == 2 ? local[1] : 1;
  const int64_t whole_columns = local.rank() == 2 ? spec.shape[1] : 1;
  std::vector<int64_t> expected;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t row = i + (along.kind == Placement::Kind::split && along.dimension == 0 ? piece * rows : 0);
      const int64_t column = j + (along.kind == Placement::Kind::split && along.dimension == 1 ? piece * columns : 0);
      const bool there = row < spec.shape[0] && column < whole_columns;
      expected.push_back(there ? row * whole_columns + column : kNowhere);
    }
  return expected;
}

}  // namespace

TEST_CASE("runs of a shard lead to its elements of the whole tensor", "[quick][parallel]") {
  const std::vector<std::pair<Shape, Placement>> cases = {
      {{7, 5}, Placement::same()},     {{8, 5}, Placement::split(0)},    {{5, 8}, Placement::split(1)},
      {{13}, Placement::split(0, 16)}, {{3, 2}, Placement::split(0, 8)}, {{4, 6}, Placement::split(0, 0, 2)},
      {{9}, Placement::parts()}};
  const Mesh mesh({{1, 4, 1, 1, 1}}, kOrder);
  for (const auto& [shape, along] : cases)
    for (int64_t rank = 0; rank < 4; ++rank) {
      const ParameterSpec spec = {.name = "tensor", .shape = shape, .along = placements(along)};
      const std::vector<int64_t> expected = expected_places(spec, mesh, rank);
      const int64_t elements = std::ssize(expected);
      REQUIRE(places(spec, mesh, rank, 0, elements) == expected);
      for (int64_t begin = 0; begin < elements; ++begin)
        for (int64_t count = 1; begin + count <= elements; ++count)
          REQUIRE(places(spec, mesh, rank, begin, count) ==
                  std::vector<int64_t>(expected.begin() + begin, expected.begin() + begin + count));
    }
}

TEST_CASE("whole rows are one run", "[quick][parallel]") {
  const Mesh mesh({{1, 4, 1, 1, 1}}, kOrder);
  int64_t runs = 0;
  const ParameterSpec spec = {.name = "rows", .shape = {13, 5}, .along = placements(Placement::split(0, 16))};
  for_each_run(spec, mesh, mesh.coordinate_of(3), [&](const ElementRun& run) {
    ++runs;
    CHECK(run.count == 5);  // of four rows three are padding
  });
  CHECK(runs == 1);
}

}  // namespace quintet::parallel
