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

TEST_CASE("chunks of a sequence are the rows of the whole one, chunk by chunk", "[quick][batch][B34]") {
  Dataset dataset = counting_dataset(1000, kLength, true);
  for (const int64_t size : {1, 2, 3}) {
    BatchPlace place{.base = 5, .size = size};
    Batch whole, part;
    fill_batch(dataset, place, whole);
    // Two ranks share each sequence.
    const std::vector<std::vector<Chunk>> ranks = {{{0, 4}, {12, 4}}, {{4, 4}, {8, 4}}};
    int64_t counted = 0;
    std::set<int64_t> rows;
    for (const std::vector<Chunk>& chunks : ranks) {
      place.chunks = chunks;
      fill_batch(dataset, place, part);
      REQUIRE(part.tokens.size() == static_cast<size_t>(size * kLength / 2));
      size_t row = 0;
      for (const Chunk& chunk : chunks)
        for (int64_t i = 0; i < size; ++i)
          for (int64_t p = chunk.begin; p < chunk.end(); ++p, ++row) {
            const auto at = static_cast<size_t>(i * kLength + p);
            CHECK(part.tokens[row] == whole.tokens[at]);
            CHECK(part.targets[row] == whole.targets[at]);
            CHECK(part.positions[row] == p);
            CHECK(part.rows[row] == whole.rows[at]);
            rows.insert(part.rows[row]);
          }
      counted += part.counted;
    }
    CHECK(counted == whole.counted);
    CHECK(rows.size() == whole.rows.size());
  }
  Batch batch;
  CHECK_THROWS_AS(fill_batch(dataset, {.chunks = {{12, 5}}}, batch), CheckFailure);
}

// A window of "ab%cdefg%%hijklm..." in which '%' ends documents.
Dataset documents_dataset(const TemporaryFolder& folder, const Documents& documents) {
  DatasetOptions options = options_of({{folder.write("text", "xyz%ab%cdefg%%hijklmnopqrstuvwxyz")}}, kLength);
  options.reading.end_of_document = '%';
  options.documents = documents;
  return Dataset(options);
}

TEST_CASE("positions start again with each document, and rows know where theirs starts", "[quick][batch][documents]") {
  const TemporaryFolder folder;
  Dataset dataset = documents_dataset(folder, {.end_token = '%', .mask_attention = true});
  const std::vector<int32_t> starts = {0, 0, 0, 0, 4, 4, 4, 7, 7, 7, 7, 7, 7, 13, 14, 14};
  Batch batch;
  fill_batch(dataset, {}, batch);
  CHECK(batch.document_starts == starts);
  CHECK(batch.all_document_starts == starts);
  CHECK(batch.counted == kLength);
  for (size_t p = 0; p < starts.size(); ++p) CHECK(batch.positions[p] == static_cast<int32_t>(p) - starts[p]);
  fill_batch(dataset, {.chunks = {{4, 4}, {8, 4}}}, batch);
  CHECK(batch.document_starts == std::vector<int32_t>(starts.begin() + 4, starts.begin() + 12));
  CHECK(batch.all_document_starts == starts);
  CHECK(batch.positions[3] == 0);
  // The next window is inside a document: nothing is known of its beginning.
  fill_batch(dataset, {.base = 1}, batch);
  CHECK(batch.document_starts == std::vector<int32_t>(kLength, 0));
  CHECK(batch.positions.back() == kLength - 1);
}

TEST_CASE("a prediction made from the end of a document need not count", "[quick][batch][documents]") {
  const TemporaryFolder folder;
  Dataset dataset = documents_dataset(folder, {.end_token = '%', .mask_end = true});
  Batch batch;
  fill_batch(dataset, {}, batch);
  CHECK(batch.document_starts.empty());
  CHECK(batch.all_document_starts.empty());
  CHECK(batch.counted == kLength - 4);
  for (size_t p = 0; p < static_cast<size_t>(kLength); ++p) {
    CHECK((batch.targets[p] == kNotCounted) == (batch.tokens[p] == '%'));
    CHECK(batch.positions[p] == static_cast<int32_t>(p));
  }
  fill_batch(dataset, {.chunks = {{0, 4}, {12, 4}}}, batch);
  CHECK(batch.counted == 8 - 3);
}

TEST_CASE("a data rank outside the mesh is our fault", "[quick][batch]") {
  Dataset dataset = counting_dataset(1000, kLength, false);
  Batch batch;
  CHECK_THROWS_AS(fill_batch(dataset, {.data_rank = 2, .data_ranks = 2}, batch), CheckFailure);
}

}  // namespace
}  // namespace quintet::data
