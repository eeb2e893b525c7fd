#include <catch2/catch.hpp>

#include <algorithm>

#include "lib/device/device.h"
#include "tests/support/arrays.h"

using namespace quintet;
using namespace quintet::device;
using namespace quintet::testing;

namespace {

bool kept(const Dropout& dropout, int64_t row, int64_t channel, int64_t width) {
  const uint64_t index = static_cast<uint64_t>(row * width + channel);
  const uint32_t word = philox(dropout.seed, index / 4, dropout.stream)[index % 4];
  return static_cast<double>(word) >= dropout.probability * 4294967296.0;
}

}  // namespace

TEMPLATE_TEST_CASE("dropout follows its formula at every row, channel and width", "[quick][ops][dropout]", float,
                   double) {
  using T = TestType;
  const auto device = make_cpu_device(3);
  for (const int64_t width : {1, 5, 33, 64, 2050}) {
    const auto keys = Array<int64_t>::of({4}, std::vector<int64_t>{0, 1, 12345678901234, 7});
    const auto branch = Array<T>::random({4, width}, 1), residual = Array<T>::random({4, width}, 2);
    for (const double probability : {0.1, 0.5, 0.9}) {
      const Dropout dropout = {.probability = probability, .seed = 99, .stream = 1234567890123456789, .rows = keys};
      Array<T> alone({4, width}), added({4, width});
      device->add_dropout({}, branch, dropout, alone);
      device->add_dropout(residual, branch, dropout, added);
      const T scale = static_cast<T>(1 / (1 - probability));
      for (int64_t i = 0; i < branch.size(); ++i) {
        const T expected = kept(dropout, keys[i / width], i % width, width) ? branch[i] * scale : T{0};
        REQUIRE(alone[i] == expected);
        REQUIRE(added[i] == residual[i] + expected);
      }
      auto in_place = branch;
      device->add_dropout({}, in_place, dropout, in_place);
      CHECK(same_bits(in_place, alone));
      in_place = residual;
      device->add_dropout(in_place, branch, dropout, in_place);
      CHECK(same_bits(in_place, added));
    }
  }
}

TEST_CASE("dropout keeps its share, and other rows, seeds and streams keep others", "[quick][ops][dropout]") {
  const auto device = make_cpu_device(2);
  const int64_t rows = 100, width = 1000;
  Array<int64_t> keys({rows});
  for (int64_t t = 0; t < rows; ++t) keys[t] = 3 * t;
  Array<float> ones({rows, width});
  device->fill(ones, 1);
  const auto masked = [&](uint64_t seed, uint64_t stream) {
    Array<float> output({rows, width});
    device->add_dropout({}, ones, {.probability = 0.25, .seed = seed, .stream = stream, .rows = keys}, output);
    return output;
  };
  const Array<float> mask = masked(1, 1);
  const int64_t count = rows * width;
  const auto share = [&](const Array<float>& array) {
    return static_cast<double>(
               std::count_if(array.span().begin(), array.span().end(), [](float x) { return x != 0; })) /
           static_cast<double>(count);
  };
  CHECK(share(mask) == Approx(0.75).margin(5 * 0.433 / std::sqrt(static_cast<double>(count))));
  CHECK(same_bits(mask, masked(1, 1)));
  CHECK(!same_bits(mask, masked(2, 1)));
  CHECK(!same_bits(mask, masked(1, 2)));
  CHECK(!std::equal(mask.data(), mask.data() + width, mask.data() + width));
}

TEST_CASE("a dropped element is zero even if it was not finite", "[quick][ops][dropout]") {
  const auto device = make_cpu_device(1);
  const auto keys = Array<int64_t>::of({1}, std::vector<int64_t>{3});
  Array<float> branch({1, 64}), output({1, 64});
  device->fill(branch, std::numeric_limits<double>::quiet_NaN());
  const Dropout dropout = {.probability = 0.5, .seed = 1, .stream = 1, .rows = keys};
  device->add_dropout({}, branch, dropout, output);
  for (int64_t c = 0; c < 64; ++c) CHECK(std::isnan(output[c]) == kept(dropout, 3, c, 64));
}
