#include "lib/device/memory.h"

#include "lib/device/null_device.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdlib>
#include <cstring>

using namespace quintet;
using namespace quintet::device;

namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

bool is_zero(const Tensor& tensor) {
  const auto* bytes = static_cast<const std::byte*>(tensor.data());
  return std::all_of(bytes, bytes + tensor.bytes(), [](std::byte byte) { return byte == std::byte{0}; });
}

bool is_aligned(const Tensor& tensor) { return reinterpret_cast<uintptr_t>(tensor.data()) % 64 == 0; }

}  // namespace

TEST_CASE("the ledger knows bytes and peaks by owner and in all", "[quick][memory]") {
  MemoryLedger ledger;
  ledger.add(Owner::weights, 100);
  ledger.add(Owner::activations, 50);
  ledger.add(Owner::activations, -50);
  ledger.add(Owner::activations, 30);
  ledger.add(Owner::gradients, 10);
  CHECK(ledger.bytes() == 140);
  CHECK(ledger.peak_bytes() == 150);
  BytesByOwner expected;
  expected[Owner::weights] = 100;
  expected[Owner::activations] = 50;
  expected[Owner::gradients] = 10;
  CHECK(ledger.peak_by_owner() == expected);
  CHECK_THROWS_AS(ledger.add(Owner::gradients, -11), CheckFailure);
}

TEST_CASE("a buffer is zeroed, aligned, counted in cache lines and given back", "[quick][memory]") {
  const auto device = make_cpu_device(1);
  MemoryLedger ledger;
  for (const int64_t elements : {int64_t{0}, int64_t{1}, int64_t{17}, kMiB / 8, kMiB / 4, kMiB}) {
    for (int round = 0; round < 2; ++round) {
      Buffer buffer(*device, ledger, Owner::weights, DType::fp64, elements);
      CHECK(buffer.tensor());
      CHECK(buffer.tensor().shape() == Shape{elements});
      CHECK(is_aligned(buffer.tensor()));
      CHECK(is_zero(buffer.tensor()));
      CHECK(ledger.bytes() == std::max<int64_t>(64, (8 * elements + 63) / 64 * 64));
      std::memset(buffer.tensor().data(), 0xff, static_cast<size_t>(buffer.tensor().bytes()));
    }
    CHECK(ledger.bytes() == 0);
  }
  CHECK(ledger.peak_bytes() == 8 * kMiB);
}

TEST_CASE("a moved buffer has one owner", "[quick][memory]") {
  const auto device = make_cpu_device(1);
  MemoryLedger ledger;
  Buffer first(*device, ledger, Owner::weights, DType::fp32, 16),
      second(*device, ledger, Owner::gradients, DType::fp32, 32);
  void* const data = first.tensor().data();
  second = std::move(first);
  CHECK(second.tensor().data() == data);
  CHECK(!first.tensor());  // NOLINT: what a moved-from buffer holds is the point
  CHECK(ledger.bytes() == 64);
  const Buffer third = std::move(second);
  CHECK(third.tensor().data() == data);
  CHECK(ledger.bytes() == 64);
  CHECK(third.slice(4, 2).data() == third.tensor().as<float>() + 4);
}

TEST_CASE("an arena hands out aligned pieces side by side and takes them back to a mark", "[quick][memory]") {
  const auto device = make_cpu_device(1);
  MemoryLedger ledger;
  Arena arena(*device, ledger, Owner::activations);
  const Tensor first = arena.allocate(DType::fp32, {3, 5});
  const Tensor second = arena.allocate(DType::u8, {1});
  CHECK(is_aligned(first));
  CHECK(second.as<uint8_t>() == static_cast<uint8_t*>(first.data()) + 64);
  CHECK(ledger.bytes() == 128);
  Tensor third;
  {
    const ArenaScope scope(arena);
    third = arena.allocate(DType::fp64, {100});
    CHECK(ledger.bytes() == 128 + 832);
  }
  CHECK(ledger.bytes() == 128);
  CHECK(arena.allocate(DType::fp64, {2}).data() == third.data());
  CHECK(arena.allocate(DType::fp32, {0}));
  arena.reset();
  CHECK(ledger.bytes() == 0);
  CHECK(ledger.peak_bytes() == 128 + 832);
  CHECK(arena.allocate(DType::u8, {1}).data() == first.data());
}

TEST_CASE("an arena grows without moving what it gave out, then melts into one block", "[quick][memory]") {
  const auto device = make_cpu_device(1);
  MemoryLedger ledger;
  {
    Arena arena(*device, ledger, Owner::activations);
    std::vector<Tensor> pieces;
    for (int i = 0; i < 20; ++i) {
      pieces.push_back(arena.allocate(DType::u8, {kMiB * 3 / 4}));
      std::memset(pieces.back().data(), i, static_cast<size_t>(pieces.back().bytes()));
    }
    for (int i = 0; i < 20; ++i) {
      const auto* bytes = pieces[static_cast<size_t>(i)].as<uint8_t>();
      CHECK(
          std::all_of(bytes, bytes + pieces[static_cast<size_t>(i)].bytes(), [i](uint8_t byte) { return byte == i; }));
    }
    CHECK(ledger.peak_bytes() == 15 * kMiB);
    arena.reset();
    CHECK(ledger.bytes() == 0);
    const auto* start = arena.allocate(DType::u8, {kMiB * 3 / 4}).as<uint8_t>();
    for (int i = 1; i < 20; ++i) {
      CHECK(arena.allocate(DType::u8, {kMiB * 3 / 4}).as<uint8_t>() == start + i * kMiB * 3 / 4);
    }
  }
  CHECK(ledger.bytes() == 0);
}

TEST_CASE("an arena takes little more than what is asked for, and what it expects as one block", "[quick][memory]") {
  const auto device = make_null_device();
  MemoryLedger ledger;
  {
    Arena arena(*device, ledger, Owner::activations);
    for (int64_t used = kMiB; used <= 100 * kMiB; used += kMiB) {
      arena.allocate(DType::u8, {kMiB});
      CHECK(ledger.held_bytes() <= used + used / 3 + 2 * kMiB);
    }
    CHECK(arena.most_used() == 100 * kMiB);
  }
  CHECK(ledger.held_bytes() == 0);
  Arena arena(*device, ledger, Owner::activations, 10 * kMiB);
  CHECK(ledger.held_bytes() == 0);
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 10; ++i) {
      arena.allocate(DType::u8, {kMiB});
      CHECK(ledger.held_bytes() == 10 * kMiB);
    }
    arena.reset();
  }
}

TEST_CASE("an arena books pieces under another owner for as long as it is told to", "[quick][memory]") {
  const auto device = make_null_device();
  MemoryLedger ledger;
  Arena arena(*device, ledger, Owner::activations);
  const Arena::Mark mark = arena.mark();
  arena.allocate(DType::u8, {64});
  {
    const OwnerScope scope(arena, Owner::expert_buffers);
    arena.allocate(DType::u8, {128});
  }
  arena.allocate(DType::u8, {64});
  CHECK(ledger.by_owner()[Owner::activations] == 128);
  CHECK(ledger.by_owner()[Owner::expert_buffers] == 128);
  arena.release_to(mark);
  CHECK(ledger.by_owner() == BytesByOwner{});
}

TEST_CASE("memory that the device does not have is an error that names its owner", "[quick][memory]") {
  const auto device = make_null_device(4 * kMiB);
  MemoryLedger ledger;
  ledger.advise([](Owner owner) { return "less of " + std::string(name_of(owner)); });
  const Buffer weights(*device, ledger, Owner::weights, DType::u8, 3 * kMiB);
  CHECK_THROWS_WITH(Buffer(*device, ledger, Owner::moments, DType::u8, 2 * kMiB),
                    "memory: moments asks for 2.0 MiB more than there is; the rank holds 3.0 MiB: weights 3.0 MiB; "
                    "choose less of moments");
  Arena arena(*device, ledger, Owner::activations);
  CHECK_NOTHROW(arena.allocate(DType::u8, {kMiB / 2}));
  CHECK_THROWS_WITH(arena.allocate(DType::u8, {kMiB}), Catch::Contains("memory: activations asks for 1.0 MiB more"));
}

TEST_CASE("a mark survives the blocks that came after it", "[quick][memory]") {
  const auto device = make_cpu_device(1);
  MemoryLedger ledger;
  Arena arena(*device, ledger, Owner::activations);
  const Tensor first = arena.allocate(DType::u8, {64});
  std::memset(first.data(), 7, 64);
  for (int step = 0; step < 3; ++step) {
    const ArenaScope scope(arena);
    for (int i = 0; i < 8; ++i) arena.allocate(DType::u8, {kMiB});
    CHECK(ledger.bytes() == 64 + 8 * kMiB);
  }
  CHECK(ledger.bytes() == 64);
  CHECK(first.as<uint8_t>()[63] == 7);
  CHECK(arena.allocate(DType::u8, {64}).as<uint8_t>() == first.as<uint8_t>() + 64);
  CHECK_THROWS_AS(arena.release_to({.block = 0, .offset = 1024, .used = 1024, .used_by_owner = {}}), CheckFailure);
}

TEST_CASE("a CPU device says what it computes on", "[quick][memory]") {
  CHECK_THAT(make_cpu_device(1)->description(), Catch::StartsWith("CPU, 1 thread ("));
  CHECK_THAT(make_cpu_device(2)->description(), Catch::StartsWith("CPU, 2 threads ("));
  CHECK(make_cpu_device(3)->threads() == 3);
  CHECK_THROWS_AS(make_cpu_device(0), CheckFailure);
}
