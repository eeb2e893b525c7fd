#include "lib/data/batch.h"

#include <map>
#include <set>

#include <catch2/catch.hpp>

#include "lib/base/error.h"
#include "tests/data/fixtures.h"

namespace quintet::data {
namespace {

constexpr int64_t kLength = 16;

// The tokens of a step by ordinal, read by all data ranks; each ordinal must come exactly once.
std::map<int64_t, std::vector<int32_t>> step_samples(const Dataset& dataset, int64_t base, int64_t global,
                                                     int64_t ranks, int64_t size) {
  std::map<int64_t, std::vector<int32_t>> samples;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    Dataset own = dataset;
    Batch batch;
    for (int64_t j = 0; j < global / (ranks * size); ++j) {
      fill_batch(own, {.base = base, .microbatch = j, .data_rank = rank, .data_ranks = ranks, .size = size}, batch);
      REQUIRE(batch.counted == size * kLength);
      for (int64_t i = 0; i < size; ++i) {
        const int64_t ordinal = batch.rows[static_cast<size_t>(i * kLength)] / kLength;
        const auto first = batch.tokens.begin() + i * kLength;
        const bool is_new = samples.emplace(ordinal, std::vector<int32_t>(first, first + kLength)).second;
        REQUIRE(is_new);
      }
    }
  }
  return samples;
}

TEST_CASE("data ranks read disjoint samples whose union no layout changes", "[quick][batch]") {
  const Dataset dataset = counting_dataset(5000, kLength, true);
  constexpr int64_t kGlobal = 16;
  for (const int64_t step : {1, 2, 40}) {
    const int64_t base = (step - 1) * kGlobal;
    const auto one = step_samples(dataset, base, kGlobal, 1, 1);
    REQUIRE(one.size() == kGlobal);
    CHECK(one.begin()->first == base);
    CHECK(one.rbegin()->first == base + kGlobal - 1);
    Dataset reader = dataset;
    for (const auto& [ordinal, tokens] : one) {
      std::vector<int32_t> expected = sample_of(reader, ordinal);
      expected.pop_back();
      REQUIRE(tokens == expected);
    }
    for (const int64_t ranks : {1, 2, 4, 8, 16})
      for (int64_t size = 1; ranks * size <= kGlobal; size *= 2) {
        INFO("data ranks " << ranks << ", micro batch " << size);
        CHECK(step_samples(dataset, base, kGlobal, ranks, size) == one);
      }
  }
}

TEST_CASE("microbatch j of data rank r starts at ordinal base + (j*D + r)*b", "[quick][batch]") {
  const BatchPlace place{.base = 48, .microbatch = 2, .data_rank = 1, .data_ranks = 4, .size = 2};
  CHECK(place.first_ordinal() == 48 + (2 * 4 + 1) * 2);
  CHECK(BatchPlace{.base = int64_t{1} << 40, .microbatch = 1, .data_ranks = 1 << 20, .size = 1 << 20}.first_ordinal() ==
        int64_t{1} << 41);
}

TEST_CASE("a batch holds inputs, the tokens behind them, positions and row identities", "[quick][batch]") {
  Dataset dataset = counting_dataset(1000, kLength, false);
  Batch batch;
  fill_batch(dataset, {.base = 6, .microbatch = 1, .data_rank = 1, .data_ranks = 2, .size = 3}, batch);
  CHECK(batch.size == 3);
  CHECK(batch.sequence_length == kLength);
  CHECK(batch.counted == 3 * kLength);
  REQUIRE(batch.tokens.size() == 3 * kLength);
  REQUIRE(batch.targets.size() == 3 * kLength);
  for (int64_t i = 0; i < 3; ++i)
    for (int64_t p = 0; p < kLength; ++p) {
      const auto at = static_cast<size_t>(i * kLength + p);
      const int64_t ordinal = 6 + 9 + i;
      CHECK(batch.rows[at] == ordinal * kLength + p);
      CHECK(batch.positions[at] == p);
      CHECK(batch.tokens[at] == ordinal * kLength + p);
      CHECK(batch.targets[at] == ordinal * kLength + p + 1);
    }
}

TEST_CASE("row identities do not wrap", "[quick][batch]") {
  Dataset dataset = counting_dataset(1000, kLength, true);
  Batch batch;
  constexpr int64_t kFar = int64_t{1} << 50;
  fill_batch(dataset, {.base = kFar}, batch);
  CHECK(batch.rows.back() == kFar * kLength + kLength - 1);
}

TEST_CASE("samples past the limit are padding that does not count", "[quick][batch]") {
  // 5 samples over 2 data ranks of micro batch 2: 2 microbatches, of which the second has one sample.
  CHECK(microbatches_for(5, 2, 2) == 2);
  CHECK(microbatches_for(4, 2, 2) == 1);
  CHECK(microbatches_for(1, 8, 1) == 1);
  Dataset dataset = counting_dataset(1000, kLength, false);
  Batch batch;
  int64_t counted = 0;
  for (int64_t j = 0; j < 2; ++j)
    for (int64_t rank = 0; rank < 2; ++rank) {
      const BatchPlace place{.microbatch = j, .data_rank = rank, .data_ranks = 2, .size = 2, .limit = 5};
      fill_batch(dataset, place, batch);
      counted += batch.counted;
      int64_t targets = 0;
      for (size_t at = 0; at < batch.targets.size(); ++at) {
        const bool inside = place.first_ordinal() + static_cast<int64_t>(at) / kLength < 5;
        targets += batch.targets[at] != kNotCounted;
        CHECK((batch.targets[at] == kNotCounted) == !inside);
        if (!inside) CHECK(batch.tokens[at] == 0);
      }
      CHECK(targets == batch.counted);
    }
  CHECK(counted == 5 * kLength);
}

TEST_CASE("a data rank outside the mesh is our fault", "[quick][batch]") {
  Dataset dataset = counting_dataset(1000, kLength, false);
  Batch batch;
  CHECK_THROWS_AS(fill_batch(dataset, {.data_rank = 2, .data_ranks = 2}, batch), CheckFailure);
}

}  // namespace
}  // namespace quintet::data
