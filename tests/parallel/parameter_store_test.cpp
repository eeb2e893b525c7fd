#include "lib/parallel/parameter_store.h"

#include <numeric>

#include <catch2/catch.hpp>

namespace quintet::parallel {
namespace {

constexpr std::array<Axis, kAxisCount> kOrder = {Axis::tp, Axis::cp, Axis::ep, Axis::dp, Axis::pp};

void add_some(ParameterStore& store) {
  store.begin_unit("unit");
  store.add({.name = "first", .shape = {10, 7}, .init = Init::normal(0.5)});
  store.add({.name = "second", .shape = {33}, .init = Init::ones()});
  store.add({.name = "third", .shape = {8, 6}, .along = placements(Placement::split(0)), .init = Init::normal(1)});
  store.end_unit();
}

}  // namespace

TEST_CASE("buckets hold each parameter once, aligned, in the order of backward", "[quick][parallel]") {
  for (const int64_t pieces : {1, 3, 8}) {
    const Mesh mesh({{pieces, 1, 1, 1, 1}}, kOrder);
    for (const int64_t bytes : {1, 400, 100000}) {
      ParameterStore store(mesh, mesh.coordinate_of(0));
      add_some(store);
      store.lay_out({}, bytes);
      int64_t end = 0;
      std::vector<std::string> names;
      for (const Bucket& bucket : store.buckets()) {
        REQUIRE(bucket.all.begin == end);
        REQUIRE(bucket.all.count % std::lcm(pieces, int64_t{128}) == 0);
        int64_t covered = bucket.all.begin;
        for (const Parameter* parameter : bucket.parameters) {
          names.push_back(parameter->name());
          REQUIRE((parameter->offset() - bucket.all.begin) % 64 == 0);
          REQUIRE(parameter->offset() >= covered);
          covered = parameter->offset() + parameter->elements();
        }
        REQUIRE(covered <= bucket.all.end());
        end = bucket.all.end();
      }
      REQUIRE(names == std::vector<std::string>{"third", "second", "first"});
      REQUIRE(store.buckets().size() == (bytes == 1 ? 3 : bytes == 400 ? 2 : 1));
    }
  }
}

TEST_CASE("spans cut parameters at the borders of a range and leave padding out", "[quick][parallel]") {
  const Mesh mesh({{1, 1, 1, 1, 1}}, kOrder);
  ParameterStore store(mesh, mesh.coordinate_of(0));
  add_some(store);
  store.lay_out({}, 100000);
  const Bucket& bucket = store.buckets()[0];
  int64_t elements = 0;
  for (int64_t begin = 0; begin < bucket.all.count; begin += 50)
    for (const ParameterSpan& span :
         ParameterStore::spans(bucket, {begin, std::min<int64_t>(50, bucket.all.count - begin)})) {
      REQUIRE(span.range.begin >= begin);
      REQUIRE(span.range.end() <= begin + 50);
      elements += span.range.count;
    }
  REQUIRE(elements == 10 * 7 + 33 + 8 * 6);
}

TEST_CASE("shards of a tensor start as the pieces of the whole", "[quick][parallel]") {
  const auto device = device::make_cpu_device(1);
  device::MemoryLedger ledger;
  const auto third = [&](const Mesh& mesh, int64_t rank) {
    ParameterStore store(mesh, mesh.coordinate_of(rank));
    add_some(store);
    store.lay_out({}, 100000);
    store.allocate(*device, ledger);
    store.initialise(*device, 5);
    const auto values = store.parameters()[2].weight().span<float>();
    return std::vector<float>(values.begin(), values.end());
  };
  const std::vector<float> whole = third(Mesh({{1, 1, 1, 1, 1}}, kOrder), 0);
  const Mesh split({{1, 2, 1, 1, 1}}, kOrder);
  std::vector<float> joined = third(split, 0);
  const std::vector<float> upper = third(split, 1);
  joined.insert(joined.end(), upper.begin(), upper.end());
  REQUIRE(joined == whole);
}

TEST_CASE("matrices decay and vectors do not", "[quick][parallel]") {
  const Mesh mesh({{2, 2, 1, 1, 1}}, kOrder);
  ParameterStore store(mesh, mesh.coordinate_of(3));
  add_some(store);
  REQUIRE(store.parameters()[0].decays());
  REQUIRE(!store.parameters()[1].decays());
  REQUIRE(store.parameters()[2].shape() == Shape{4, 6});
}

// A layer's parameters between those of two others, and two experts of four.
void add_layer_with_experts(ParameterStore& store) {
  store.begin_unit("layer");
  store.add({.name = "norm", .shape = {16}});
  for (int64_t j = 0; j < 4; ++j) {
    PerAxis<Placement> along = placements();
    along[Axis::ep] = Placement::one_holder(j, 4);
    if (along[Axis::ep].holder(store.mesh().size(Axis::ep)) == store.coordinate()[Axis::ep])
      store.add({.name = "expert " + std::to_string(j), .shape = {4, 16}, .along = along});
  }
  store.add({.name = "bias", .shape = {4}, .trained = false});
  store.add({.name = "output", .shape = {6, 16}});
  store.end_unit();
}

TEST_CASE("experts stand in buckets of their own that data and context ranks share", "[quick][parallel][moe]") {
  const AxisSet experts = {Axis::dp, Axis::cp};
  const Mesh mesh({{3, 1, 1, 2, 5}}, kOrder);
  for (const int64_t bytes : {1, 300, 100000})
    for (const int64_t place : {0, 1}) {
      Coordinate coordinate;
      coordinate[Axis::ep] = place;
      ParameterStore store(mesh, coordinate);
      add_layer_with_experts(store);
      store.lay_out({}, bytes);
      std::vector<std::string> dense, expert;
      int64_t end = 0;
      for (const Bucket& bucket : store.buckets()) {
        REQUIRE(bucket.all.begin == end);
        end += bucket.all.count;
        REQUIRE((bucket.data_axes == experts || bucket.data_axes == AxisSet{Axis::dp, Axis::ep, Axis::cp}));
        REQUIRE(bucket.all.count % std::lcm(mesh.size(bucket.data_axes), int64_t{128}) == 0);
        for (const Parameter* parameter : bucket.parameters) {
          REQUIRE(parameter->data_axes() == bucket.data_axes);
          (bucket.data_axes == experts ? expert : dense).push_back(parameter->name());
        }
      }
      REQUIRE(dense == std::vector<std::string>{"output", "norm"});
      REQUIRE(expert == (place == 0 ? std::vector<std::string>{"expert 1", "expert 0"}
                                    : std::vector<std::string>{"expert 3", "expert 2"}));
      REQUIRE(store.elements(Extent::whole) == end);
      REQUIRE(store.buckets().size() == (bytes == 1 ? 4 : bytes == 300 ? 4 : 2));
    }
}

TEST_CASE("each expert has one holder along ep", "[quick][parallel][moe]") {
  const Mesh mesh({{2, 2, 1, 4, 1}}, kOrder);
  for (int64_t j = 0; j < 8; ++j) {
    ParameterSpec spec = {.name = "expert", .shape = {4, 4}, .along = placements(Placement::split(0))};
    spec.along[Axis::ep] = Placement::one_holder(j, 8);
    for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
      const Coordinate coordinate = mesh.coordinate_of(rank);
      REQUIRE(is_first_holder(spec, mesh, coordinate) == (coordinate[Axis::ep] == j / 2));
    }
  }
}

TEST_CASE("what is not trained lies outside of the flat buffers and has no gradient", "[quick][parallel][moe]") {
  const auto device = device::make_cpu_device(1);
  device::MemoryLedger ledger;
  const Mesh mesh({{1, 1, 1, 1, 1}}, kOrder);
  ParameterStore store(mesh, mesh.coordinate_of(0));
  add_layer_with_experts(store);
  store.lay_out({.compute = DType::bf16}, 100000);
  store.allocate(*device, ledger);
  for (const Parameter& parameter : store.parameters()) {
    const bool is_bias = parameter.name() == "bias";
    REQUIRE(static_cast<bool>(parameter.gradient()) == !is_bias);
    REQUIRE(parameter.weight().dtype() == (is_bias ? DType::fp32 : DType::bf16));
    REQUIRE((parameter.bucket() >= 0) == !is_bias);
  }
}

}  // namespace quintet::parallel
