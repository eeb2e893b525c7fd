#include <catch2/catch.hpp>

#include "lib/device/device.h"
#include "tests/support/arrays.h"

using namespace quintet;
using namespace quintet::device;
using namespace quintet::testing;

namespace {

// Six tokens over a shard with rows 10 to 14 of the vocabulary; tokens 9 and 15 lie outside, 12 comes three times.
constexpr int64_t kStart = 10, kRows = 5;
const std::vector<int32_t> kTokens = {12, 9, 14, 12, 15, 12, 10};
const std::vector<int32_t> kPositions = {0, 1, 2, 0, 1, 2, 3};

}  // namespace

TEMPLATE_TEST_CASE("embedding adds the token's row of this shard and the position's row", "[quick][ops]", float,
                   double) {
  using T = TestType;
  const auto device = make_cpu_device(2);
  for (const int64_t width : {1, 5, 33, 64}) {
    const int64_t count = static_cast<int64_t>(kTokens.size());
    const auto tokens = Array<int32_t>::of({count}, kTokens), positions = Array<int32_t>::of({count}, kPositions);
    const auto table = Array<T>::random({kRows, width}, 1), position_table = Array<T>::random({4, width}, 2);
    for (const bool with_positions : {false, true}) {
      auto output = Array<T>::random({count, width}, 3);
      device->embedding_forward({.tokens = tokens,
                                 .table = table,
                                 .vocabulary_start = kStart,
                                 .position_table = with_positions ? position_table.tensor() : Tensor(),
                                 .positions = with_positions ? positions.tensor() : Tensor(),
                                 .output = output});
      for (int64_t t = 0; t < count; ++t) {
        const int64_t row = tokens[t] - kStart;
        for (int64_t c = 0; c < width; ++c) {
          T expected = row >= 0 && row < kRows ? table[row * width + c] : T{0};
          if (with_positions) expected += position_table[positions[t] * width + c];
          REQUIRE(output[t * width + c] == expected);
        }
      }
    }
  }
}

TEMPLATE_TEST_CASE("embedding backward adds in ascending token order, bit for bit", "[quick][ops]", float, double) {
  using T = TestType;
  for (const int threads : {1, 3}) {
    const auto device = make_cpu_device(threads);
    for (const int64_t width : {1, 5, 33, 64, 3000}) {
      const int64_t count = static_cast<int64_t>(kTokens.size());
      const auto tokens = Array<int32_t>::of({count}, kTokens), positions = Array<int32_t>::of({count}, kPositions);
      const auto d_output = Array<T>::random({count, width}, 1);
      auto table = Array<T>::random({kRows, width}, 2), position_table = Array<T>::random({4, width}, 3);
      auto expected = table, expected_positions = position_table;
      for (int64_t t = 0; t < count; ++t) {
        const int64_t row = tokens[t] - kStart;
        for (int64_t c = 0; c < width; ++c) {
          if (row >= 0 && row < kRows) expected[row * width + c] += d_output[t * width + c];
          expected_positions[positions[t] * width + c] += d_output[t * width + c];
        }
      }
      device->embedding_backward({.tokens = tokens,
                                  .vocabulary_start = kStart,
                                  .positions = positions,
                                  .d_output = d_output,
                                  .table_gradient = table,
                                  .position_table_gradient = position_table});
      CHECK(same_bits(table, expected));
      CHECK(same_bits(position_table, expected_positions));
    }
  }
}

TEST_CASE("a position outside its table and a table of another width are refused", "[quick][ops]") {
  const auto device = make_cpu_device(1);
  const auto tokens = Array<int32_t>::of({1}, std::vector<int32_t>{0}),
             four = Array<int32_t>::of({1}, std::vector<int32_t>{4});
  const Array<float> table({5, 3}), narrow_table({5, 2}), positions({4, 3}), output({1, 3});
  EmbeddingForward op = {.tokens = tokens,
                         .table = table,
                         .vocabulary_start = 0,
                         .position_table = positions,
                         .positions = four,
                         .output = output};
  CHECK_THROWS_AS(device->embedding_forward(op), CheckFailure);
  op.positions = tokens;
  CHECK_NOTHROW(device->embedding_forward(op));
  op.table = narrow_table;
  CHECK_THROWS_AS(device->embedding_forward(op), CheckFailure);
}
