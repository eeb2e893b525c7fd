#include "lib/base/parallel.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <catch2/catch.hpp>

namespace quintet {

TEST_CASE("parallel_for covers a range once, in pieces that threads and grain alone decide", "[quick][parallel]") {
  const int threads = GENERATE(1, 2, 3, 7);
  const int64_t count = GENERATE(0, 1, 5, 64, 1000), grain = GENERATE(1, 3, 64);
  std::vector<int> visits(static_cast<size_t>(count), 0);
  std::vector<int64_t> ends(static_cast<size_t>(count) + 1, -1);
  parallel_for(threads, count, grain, [&](int64_t begin, int64_t end) {
    ends[static_cast<size_t>(begin)] = end;
    for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
  });
  REQUIRE(visits == std::vector<int>(static_cast<size_t>(count), 1));
  int pieces = 0;
  for (int64_t begin = 0; begin < count; begin = ends[static_cast<size_t>(begin)], ++pieces) {
    REQUIRE(begin % grain == 0);
    REQUIRE(ends[static_cast<size_t>(begin)] > begin);
  }
  REQUIRE(pieces == std::min<int64_t>(threads, (count + grain - 1) / grain));
}

TEST_CASE("parallel_for hands on the exception of the lowest piece", "[quick][parallel]") {
  const int threads = GENERATE(1, 3);
  REQUIRE_THROWS_WITH(
      parallel_for(threads, 90, 1, [](int64_t begin, int64_t) { fail(ExitCode::numeric, "piece at {}", begin); }),
      "piece at 0");
}

}  // namespace quintet
