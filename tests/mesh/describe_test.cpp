#include "lib/mesh/describe.h"

#include <algorithm>
#include <sstream>
#include <string>

#include <catch2/catch.hpp>

namespace quintet {
namespace {

constexpr std::array<Axis, kAxisCount> kOrder = {Axis::tp, Axis::cp, Axis::ep, Axis::dp, Axis::pp};

std::string described(const PerAxis<int64_t>& sizes) { return describe_groups(Mesh(sizes, kOrder)); }

}  // namespace

TEST_CASE("groups are described with their purpose", "[quick][mesh]") {
  REQUIRE(described({{2, 2, 2, 1, 1}}) ==
          "8 ranks: dp 2 x tp 2 x pp 2; numbered along tp, then dp, then pp\n"
          "dp  data parallel: ranks that hold the same weights and read different samples: [0 2] [1 3] [4 6] [5 7]\n"
          "tp  tensor parallel: ranks that split each layer: [0 1] [2 3] [4 5] [6 7]\n"
          "pp  pipeline parallel: ranks that hold successive layers, in this order: [0 4] [1 5] [2 6] [3 7]\n"
          "stage 0 of the pipeline: [0 1 2 3]\n"
          "stage 1 of the pipeline: [4 5 6 7]\n");
  REQUIRE(described({{1, 1, 1, 1, 1}}) == "1 rank: no groups\n");
}

TEST_CASE("the group that sums gradients is described where it spans several axes", "[quick][mesh]") {
  REQUIRE_THAT(described({{2, 1, 1, 1, 2}}),
               Catch::EndsWith("dp+cp  ranks over which gradients are summed: [0 1 2 3]\n"));
  REQUIRE_THAT(described({{2, 2, 1, 2, 1}}),
               Catch::EndsWith("dp+ep  ranks over which gradients are summed (experts' over dp alone): [0 2 4 6] "
                               "[1 3 5 7]\n"));
  for (const PerAxis<int64_t>& sizes : {PerAxis<int64_t>{{4, 2, 1, 1, 1}}, PerAxis<int64_t>{{1, 2, 2, 1, 1}}})
    REQUIRE_THAT(described(sizes), !Catch::Contains("gradients"));
}

TEST_CASE("all ranks of a large mesh are listed in lines of 120 columns", "[quick][mesh]") {
  for (const PerAxis<int64_t>& sizes : {PerAxis<int64_t>{{384, 1, 1, 1, 1}}, PerAxis<int64_t>{{12, 4, 8, 1, 1}},
                                        PerAxis<int64_t>{{3, 2, 4, 4, 4}}, PerAxis<int64_t>{{1, 8, 48, 1, 1}}}) {
    std::istringstream lines(described(sizes));
    int64_t listed = 0, lists = 0;
    for (std::string line; std::getline(lines, line);) {
      REQUIRE(line.size() <= 120);
      if (line.find("ranks:") != std::string::npos) continue;
      if (const size_t colon = line.rfind(':'); colon != std::string::npos) {
        ++lists;
        line = line.substr(colon + 1);
      }
      std::replace_if(
          line.begin(), line.end(), [](char c) { return c == '[' || c == ']'; }, ' ');
      std::istringstream numbers(line);
      for (int64_t rank = 0; numbers >> rank;) ++listed;
    }
    // Each list but those of the stages names the world once; the stages do so together.
    const int64_t stages = sizes[Axis::pp] > 1 ? sizes[Axis::pp] : 0;
    REQUIRE(listed == 384 * (lists - stages + (stages > 0 ? 1 : 0)));
  }
}

TEST_CASE("a long group begins a line and goes on below its first number", "[quick][mesh]") {
  const std::string text = described({{40, 2, 1, 1, 1}});
  const size_t first = text.find("\n    [ 0  2  4"), second = text.find("\n    [ 1  3  5");
  REQUIRE(first != std::string::npos);
  REQUIRE(second != std::string::npos);
  REQUIRE_THAT(text, Catch::Contains("\n     76 78]\n    [ 1"));
  // Two full lines: the bracket closes the second.
  REQUIRE_THAT(described({{56, 2, 1, 1, 1}}), Catch::Contains(" 108 110]\n    [  1"));
}

}  // namespace quintet
