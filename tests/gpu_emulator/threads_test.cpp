#include <catch2/catch.hpp>

#include <cmath>
#include <numeric>

#include "lib/base/dtype.h"
#include "lib/base/random.h"
#include "tests/gpu_emulator/emulator.h"
#include "tests/gpu_emulator/test_kernels.h"
#include "tests/support/device_memory.h"

using namespace quintet;
using namespace quintet::testing;

namespace {
std::vector<float> whole_numbers(int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(philox(1, i, 0)[0] % 16) - 8;
  return values;
}
}  // namespace

TEST_CASE("each thread of each block runs once, the last block in part", "[quick][emulator]") {
  const Stream stream;
  const DeviceArray<float> output(1000);
  fill_ramp(1000, 0.5F, output, stream);
  const auto values = output.read(stream);
  for (size_t i = 0; i < values.size(); ++i) REQUIRE(values[i] == 0.5F * static_cast<float>(i));
}

TEST_CASE("a block's sum by shuffles, shared memory and a barrier is the sum", "[quick][emulator]") {
  const Stream stream;
  for (const unsigned threads : {32U, 64U, 256U, 1024U}) {
    const int64_t blocks = 5;
    const std::vector<float> input = whole_numbers(blocks * threads);
    const DeviceArray<float> on_device(input), output(blocks);
    block_sums(blocks, threads, on_device, output, stream);
    const auto sums = output.read(stream);
    for (int64_t b = 0; b < blocks; ++b) {
      const auto first = input.begin() + b * threads;
      REQUIRE(sums[static_cast<size_t>(b)] == std::accumulate(first, first + threads, 0.0F));
    }
  }
}

TEST_CASE("dynamic shared memory carries values between threads", "[quick][emulator]") {
  const Stream stream;
  const std::vector<float> input = whole_numbers(3 * 96);
  const DeviceArray<float> on_device(input), output(3 * 96);
  reverse_blocks(3, 96, 0, on_device, output, stream);
  const auto values = output.read(stream);
  for (size_t i = 0; i < values.size(); ++i) REQUIRE(values[i] == input[i / 96 * 96 + 95 - i % 96]);
}

TEST_CASE("matches, votes and atomics count", "[quick][emulator]") {
  const Stream stream;
  std::vector<int> input(200);
  for (size_t i = 0; i < input.size(); ++i) input[i] = static_cast<int>(philox(2, i, 0)[0] % 7);
  const DeviceArray<int> on_device(input), counts(std::vector<int>(7)), ranks(200);
  count_values(200, on_device, counts, ranks, stream);
  const auto count = counts.read(stream), rank = ranks.read(stream);
  for (int value = 0; value < 7; ++value) {
    REQUIRE(count[static_cast<size_t>(value)] == std::count(input.begin(), input.end(), value));
  }
  for (size_t i = 0; i < input.size(); ++i) {
    const auto warp = input.begin() + static_cast<std::ptrdiff_t>(i / 32 * 32);
    REQUIRE(rank[i] == std::count(warp, input.begin() + static_cast<std::ptrdiff_t>(i), input[i]));
  }

  const DeviceArray<unsigned> votes(2);
  const DeviceArray<int> any(2), all(2);
  std::vector<int> signs(64, 1);
  signs[3] = 0;
  const DeviceArray<int> signs_on_device(signs);
  vote(64, signs_on_device, votes, any, all, stream);
  CHECK(votes.read(stream) == std::vector<unsigned>{0xfffffff7U, 0xffffffffU});
  CHECK(any.read(stream) == std::vector<int>{1, 1});
  CHECK(all.read(stream) == std::vector<int>{0, 1});
}

TEST_CASE("a tile through cp.async, ldmatrix and mma.sync is the plain product", "[quick][emulator]") {
  const Stream stream;
  const auto random = [](int64_t count, uint64_t seed) {
    std::vector<uint16_t> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) values[i] = bfloat16(static_cast<float>(normal(seed, i, 0))).bits;
    return values;
  };
  const std::vector<uint16_t> a = random(256, 1), b = random(128, 2);
  const DeviceArray<uint16_t> left(a), right(b);
  const DeviceArray<float> product(128);
  multiply_tile(left, right, product, true, stream);
  const auto values = product.read(stream);
  const auto number = [](uint16_t bits) {
    bfloat16 value;
    value.bits = bits;
    return static_cast<double>(static_cast<float>(value));
  };
  for (size_t i = 0; i < 16; ++i) {
    for (size_t j = 0; j < 8; ++j) {
      double sum = 0;
      for (size_t k = 0; k < 16; ++k) sum += number(a[i * 16 + k]) * number(b[k * 8 + j]);
      REQUIRE(static_cast<double>(values[i * 8 + j]) == Approx(sum).margin(1e-5));
    }
  }
  // Without the wait the copies have not happened yet, and the tile is poison.
  multiply_tile(left, right, product, false, stream);
  for (const float value : product.read(stream)) CHECK(std::isnan(value));
}
