#include <catch2/catch.hpp>

#include <functional>
#include <limits>
#include <vector>

#include "collective_checks.h"
#include "lib/base/random.h"

namespace quintet::comm {
namespace {

constexpr DType kTypes[] = {DType::fp64, DType::fp32, DType::bf16, DType::i64, DType::i32, DType::u8};

Mesh data_mesh(int64_t ranks) { return {PerAxis<int64_t>{{ranks, 1, 1, 1, 1}}, kAxes}; }

int run_on(int64_t ranks, const std::function<void(Communicator&)>& body) {
  return run_thread_ranks(ranks, [&](Communicator& communicator) {
    communicator.set_mesh(data_mesh(ranks));
    communicator.set_watchdog(60);
    body(communicator);
  });
}

TEST_CASE("every collective gives a serial model's bits: a sample", "[quick][comm]") {
  for (const int64_t ranks : {1, 2, 3, 4, 7, 8, 16}) {
    INFO("ranks " << ranks);
    REQUIRE(run_on(ranks, [&](Communicator& communicator) {
              uint64_t seed = static_cast<uint64_t>(ranks) * 100;
              for (const DType dtype : kTypes)
                for (const int64_t elements : {0, 1, 3, 17})
                  check_collectives(communicator, {Axis::dp}, {dtype, elements, ++seed});
              const DType drawn = kTypes[philox(7, static_cast<uint64_t>(ranks), 0)[0] % 6];
              // Just too large to be exchanged whole.
              check_collectives(communicator, {Axis::dp}, {drawn, 66000 / size_of(drawn), ++seed});
            }) == 0);
  }
}

TEST_CASE("every collective gives a serial model's bits: all types, sizes and 1 to 16 ranks", "[full][comm]") {
  for (int64_t ranks = 1; ranks <= 16; ++ranks) {
    INFO("ranks " << ranks);
    REQUIRE(run_on(ranks, [&](Communicator& communicator) {
              uint64_t seed = static_cast<uint64_t>(ranks) * 1000;
              for (const DType dtype : kTypes)
                for (const int64_t elements : {0, 1, 2, 3, 15, 16, 17, 511, 4099, 33333})
                  check_collectives(communicator, {Axis::dp}, {dtype, elements, ++seed});
              if (ranks == 2 || ranks == 7)
                for (const DType dtype : kTypes) check_collectives(communicator, {Axis::dp}, {dtype, 1000003, ++seed});
            }) == 0);
  }
}

TEST_CASE("groups along any mask of axes work side by side", "[quick][comm]") {
  const Mesh mesh(PerAxis<int64_t>{{2, 3, 1, 2, 1}}, {Axis::tp, Axis::cp, Axis::ep, Axis::dp, Axis::pp});
  REQUIRE(run_thread_ranks(12, [&](Communicator& communicator) {
            communicator.set_mesh(mesh);
            communicator.set_watchdog(60);
            uint64_t seed = 0;
            for (const AxisSet axes : {AxisSet{Axis::dp}, AxisSet{Axis::tp}, AxisSet{Axis::dp, Axis::ep},
                                       AxisSet{Axis::dp, Axis::ep, Axis::cp}, AxisSet{Axis::pp}, AxisSet::all()}) {
              const ProcessGroup& group = communicator.group(axes, std::nullopt);
              QUINTET_CHECK(group.size() == mesh.size(axes));
              QUINTET_CHECK(group.members()[static_cast<size_t>(group.rank())] == communicator.placement().rank);
              check_collectives(communicator, axes, {DType::fp32, 997, ++seed});
            }
            // Operations of different groups overlap, waited for in another order than posted.
            std::vector<double> over_dp(5000, 1), over_tp(5000, 1), over_all(5000, 1);
            const auto tensor = [](std::vector<double>& v) { return Tensor(v.data(), DType::fp64, {5000}); };
            Handle a = communicator.group({Axis::dp}, {}).all_reduce(tensor(over_dp), Reduction::sum, "a");
            Handle b = communicator.group({Axis::tp}, {}).all_reduce(tensor(over_tp), Reduction::sum, "b");
            Handle c = communicator.world().all_reduce(tensor(over_all), Reduction::sum, "c");
            c.wait();
            b.wait();
            a.wait();
            QUINTET_CHECK(over_dp[4999] == 2 && over_tp[4999] == 3 && over_all[4999] == 12);
          }) == 0);
}

TEST_CASE("blocks and ends of an axis work side by side with the axis", "[quick][comm]") {
  const Mesh mesh(PerAxis<int64_t>{{1, 4, 3, 2, 1}}, {Axis::tp, Axis::cp, Axis::ep, Axis::dp, Axis::pp});
  REQUIRE(run_thread_ranks(24, [&](Communicator& communicator) {
            communicator.set_mesh(mesh);
            communicator.set_watchdog(60);
            uint64_t seed = 0;
            for (const int64_t elements : {3, 997, 9001}) {
              check_sub_groups(communicator, Axis::tp, 2, {DType::fp32, elements, ++seed});
              check_sub_groups(communicator, Axis::pp, 1, {DType::fp64, elements, ++seed});
              check_sub_groups(communicator, Axis::ep, 2, {DType::bf16, elements, ++seed});
            }
            const int64_t rank = communicator.placement().rank;
            const auto members = communicator.block(Axis::tp, 2, std::nullopt).members();
            QUINTET_CHECK(members.size() == 2 && members[0] == rank / 2 * 2 && members[1] == members[0] + 1);
            QUINTET_CHECK(&communicator.block(Axis::tp, 2, {}) == &communicator.block(Axis::tp, 2, {}));
            QUINTET_CHECK(&communicator.block(Axis::tp, 2, {}) != &communicator.block(Axis::tp, 2, Axis::tp));
          }) == 0);
}

TEST_CASE("a second size of blocks and the ends of others are refused", "[quick][comm]") {
  REQUIRE(run_on(4, [](Communicator& communicator) {
            const auto refusal = [](const std::function<void()>& call) -> std::string {
              try {
                call();
              } catch (const CheckFailure& failure) {
                return failure.what();
              }
              return "accepted";
            };
            const auto contains = [](const std::string& text, const char* part) {
              QUINTET_CHECK(text.find(part) != std::string::npos, "{}", text);
            };
            const int64_t rank = communicator.placement().rank;
            contains(refusal([&] { communicator.block(Axis::dp, 3, Axis::dp); }), "blocks of 3 on axis dp of size 4");
            communicator.block(Axis::dp, 2, Axis::dp);
            contains(refusal([&] { communicator.block(Axis::dp, 4, {}); }), "blocks of 2 and of 4 on axis dp");
            contains(refusal([&] { communicator.ends(Axis::dp, Axis::dp); }),
                     rank == 0 || rank == 3 ? "accepted" : "is no member of dp ends");
          }) == 0);
}

TEST_CASE("a sum is the left fold over ascending ranks, and no other", "[quick][comm]") {
  // ((2^53 + 1) + 1) + -2^53 is 0 in fp64; every other order of these gives 1 or 2.
  constexpr double kBig = 0x1p53;
  const double terms[] = {kBig, 1, 1, -kBig};
  for (const int64_t elements : {int64_t{4}, int64_t{9001}}) {  // exchanged whole, and scattered
    REQUIRE(run_on(4, [&](Communicator& communicator) {
              std::vector<double> data(static_cast<size_t>(elements), terms[communicator.placement().rank]);
              communicator.world().all_reduce({data.data(), DType::fp64, {elements}}, Reduction::sum, "terms").wait();
              for (const double value : data) QUINTET_CHECK(value == 0);
            }) == 0);
  }
}

TEST_CASE("a bf16 sum is rounded once", "[quick][comm]") {
  // 256 + 1 + 1 = 258 in fp32; rounding between would stay at 256.
  const float terms[] = {256, 1, 1};
  REQUIRE(run_on(3, [&](Communicator& communicator) {
            bfloat16 value(terms[communicator.placement().rank]);
            communicator.world().all_reduce({&value, DType::bf16, {1}}, Reduction::sum, "terms").wait();
            QUINTET_CHECK(static_cast<float>(value) == 258);
          }) == 0);
}

TEST_CASE("max keeps NaN wherever it stands", "[quick][comm]") {
  REQUIRE(run_on(3, [&](Communicator& communicator) {
            const auto rank = static_cast<size_t>(communicator.placement().rank);
            float values[3] = {1, 1, 1};
            values[rank] = std::numeric_limits<float>::quiet_NaN();
            communicator.world().all_reduce({values, DType::fp32, {3}}, Reduction::max, "values").wait();
            for (const float value : values) QUINTET_CHECK(value != value);
          }) == 0);
}

TEST_CASE("a rank may overwrite its operands once its handle is done", "[quick][comm]") {
  constexpr int64_t kElements = 50000;
  REQUIRE(run_on(4, [&](Communicator& communicator) {
            ProcessGroup& group = communicator.world();
            std::vector<int32_t> own(kElements), all(4 * kElements);
            const std::vector<int64_t> counts(4, kElements);
            for (int32_t round = 0; round < 20; ++round) {
              std::fill(own.begin(), own.end(), round * 4 + static_cast<int32_t>(group.rank()));
              group
                  .all_gather({own.data(), DType::i32, {kElements}}, counts, {all.data(), DType::i32, {4 * kElements}},
                              "round")
                  .wait();
              for (int64_t i = 0; i < 4 * kElements; ++i)
                QUINTET_CHECK(all[static_cast<size_t>(i)] == round * 4 + i / kElements);
            }
          }) == 0);
}

TEST_CASE("384 thread ranks exchange tiny and larger sums", "[full][comm]") {
  REQUIRE(run_on(384, [&](Communicator& communicator) {
            std::vector<int64_t> words(72, communicator.placement().rank), many(20000, 1);
            communicator.world().all_reduce({words.data(), DType::i64, {72}}, Reduction::sum, "words").wait();
            communicator.world().all_reduce({many.data(), DType::i64, {20000}}, Reduction::sum, "many").wait();
            communicator.world().barrier();
            QUINTET_CHECK(words[71] == 384 * 383 / 2 && many[19999] == 384);
          }) == 0);
}

TEST_CASE("operands that do not fit are refused", "[quick][comm]") {
  REQUIRE(run_on(1, [&](Communicator& communicator) {
            ProcessGroup& group = communicator.world();
            float data[8] = {};
            const Tensor tensor(data, DType::fp32, {4});
            const auto refused = [](const std::function<void()>& call) {
              try {
                call();
              } catch (const CheckFailure&) {
                return;
              }
              QUINTET_CHECK(false, "accepted");
            };
            const std::vector<int64_t> four = {4}, three = {3}, two_counts = {2, 2};
            refused([&] { group.all_gather(tensor, three, tensor, "counts"); });
            refused([&] { group.all_gather(tensor, two_counts, tensor, "members"); });
            refused([&] { group.reduce_scatter(tensor, four, tensor.rows(0, 3), "piece"); });
            refused([&] { group.reduce_scatter(tensor, four, {data, DType::i32, {4}}, "types"); });
            refused([&] { group.reduce_scatter(tensor, four, {data + 1, DType::fp32, {4}}, "overlap"); });
            refused([&] { group.broadcast(tensor, 1, "root"); });
            refused([&] { group.send(tensor, 0, "to itself"); });
          }) == 0);
}

}  // namespace
}  // namespace quintet::comm
