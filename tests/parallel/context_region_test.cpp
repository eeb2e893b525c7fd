// Who holds which chunks of a sequence, and how much attention that makes.
#include "lib/parallel/context_region.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include <catch2/catch.hpp>

#include "lib/base/error.h"

namespace quintet::parallel {
namespace {

using config::ContextBalance;

// Pairs of a query and a key that it sees, among the chunks that a rank computes with.
int64_t attention_work(ContextBalance balance, int64_t ranks, int64_t rank, int64_t sequence_length) {
  int64_t work = 0;
  for (const data::Chunk& queries : context_chunks(balance, ranks, rank, sequence_length))
    for (int64_t holder = 0; holder < ranks; ++holder)
      for (const data::Chunk& keys : context_chunks(balance, ranks, holder, sequence_length))
        if (sees(queries, keys))
          for (int64_t q = queries.begin; q < queries.end(); ++q)
            work += std::max<int64_t>(0, std::min(q + 1, keys.end()) - keys.begin);
  return work;
}

// The work of the busiest rank over the mean.
double imbalance(ContextBalance balance, int64_t ranks, int64_t sequence_length) {
  std::vector<double> work;
  for (int64_t rank = 0; rank < ranks; ++rank)
    work.push_back(static_cast<double>(attention_work(balance, ranks, rank, sequence_length)));
  const double sum = std::accumulate(work.begin(), work.end(), 0.0), s = static_cast<double>(sequence_length);
  REQUIRE(sum == s * (s + 1) / 2);
  return *std::max_element(work.begin(), work.end()) / (sum / static_cast<double>(ranks));
}

}  // namespace

TEST_CASE("zigzag gives rank i the chunks i and 2 * ranks - 1 - i", "[quick][context]") {
  using Chunks = std::vector<data::Chunk>;
  CHECK(context_chunks(ContextBalance::zigzag, 2, 0, 16) == Chunks{{0, 4}, {12, 4}});
  CHECK(context_chunks(ContextBalance::zigzag, 2, 1, 16) == Chunks{{4, 4}, {8, 4}});
  CHECK(context_chunks(ContextBalance::none, 2, 1, 16) == Chunks{{8, 8}});
  for (const ContextBalance balance : {ContextBalance::zigzag, ContextBalance::none})
    CHECK(context_chunks(balance, 1, 0, 15) == Chunks{{0, 15}});
  CHECK_THROWS_AS(context_chunks(ContextBalance::zigzag, 4, 0, 12), CheckFailure);
}

TEST_CASE("every position is held once", "[quick][context]") {
  for (const ContextBalance balance : {ContextBalance::zigzag, ContextBalance::none})
    for (const int64_t ranks : {1, 2, 3, 4, 8}) {
      std::set<int64_t> positions;
      for (int64_t rank = 0; rank < ranks; ++rank)
        for (const data::Chunk& chunk : context_chunks(balance, ranks, rank, 48))
          for (int64_t position = chunk.begin; position < chunk.end(); ++position) {
            const bool is_new = positions.insert(position).second;
            REQUIRE(is_new);
          }
      REQUIRE(positions.size() == 48);
    }
}

TEST_CASE("zigzag keeps the busiest rank within 5 % of the mean attention, none does not", "[quick][context]") {
  for (const int64_t ranks : {2, 4, 8}) {
    REQUIRE(imbalance(ContextBalance::zigzag, ranks, 512) < 1.05);
    REQUIRE(imbalance(ContextBalance::none, ranks, 512) > 1.45);
  }
}

TEST_CASE("a chunk sees those that do not begin behind its end", "[quick][context]") {
  CHECK(sees({4, 4}, {0, 4}));
  CHECK(sees({4, 4}, {4, 4}));
  CHECK(sees({4, 4}, {7, 4}));
  CHECK_FALSE(sees({4, 4}, {8, 4}));
}

TEST_CASE("rows of all ranks become whole sequences and rows again", "[quick][context]") {
  const auto device = device::make_cpu_device(1);
  for (const ContextBalance balance : {ContextBalance::zigzag, ContextBalance::none}) {
    const int code = comm::run_thread_ranks(2, [&](comm::Communicator& communicator) {
      PerAxis<int64_t> sizes;
      sizes.values.fill(1);
      sizes[Axis::cp] = 2;
      communicator.set_mesh(Mesh(sizes, {Axis::tp, Axis::cp, Axis::ep, Axis::dp, Axis::pp}));
      const ContextRegion region(communicator, {config::ContextMethod::all_gather, balance}, 8);
      constexpr int64_t kSequences = 3, kWidth = 2;
      // A row's values name its place.
      std::vector<double> by_rank, sequences(kSequences * 8 * kWidth), again;
      for (int64_t rank = 0; rank < 2; ++rank)
        for (const data::Chunk& chunk : region.chunks_of(rank))
          for (int64_t sequence = 0; sequence < kSequences; ++sequence)
            for (int64_t position = chunk.begin; position < chunk.end(); ++position)
              for (int64_t i = 0; i < kWidth; ++i)
                by_rank.push_back(static_cast<double>((sequence * 8 + position) * kWidth + i));
      again.resize(by_rank.size());
      const Shape shape = {kSequences * 8, kWidth};
      const Tensor whole(sequences.data(), DType::fp64, shape);
      region.to_sequences(*device, Tensor(by_rank.data(), DType::fp64, shape), whole);
      for (size_t i = 0; i < sequences.size(); ++i)
        QUINTET_CHECK(sequences[i] == static_cast<double>(i), "place {}", i);
      region.from_sequences(*device, whole, Tensor(again.data(), DType::fp64, shape));
      QUINTET_CHECK(again == by_rank, "rows differ");
    });
    REQUIRE(code == 0);
  }
}

}  // namespace quintet::parallel
