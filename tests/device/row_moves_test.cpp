// Rows moved by index and added up: plain loops, finite differences, one rounding in bf16.
#include <catch2/catch.hpp>

#include <cmath>
#include <vector>

#include "lib/device/device.h"
#include "tests/support/arrays.h"
#include "tests/support/finite_difference.h"

using namespace quintet;
using namespace quintet::device;
using namespace quintet::testing;

namespace {

double value_of(bfloat16 x) { return static_cast<double>(static_cast<float>(x)); }
double value_of(float x) { return static_cast<double>(x); }
double value_of(double x) { return x; }

// Normal values, rounded to T.
template <typename T>
Array<T> random(Shape shape, uint64_t seed) {
  const auto values = Array<float>::random(shape, seed);
  Array<T> rounded(shape);
  for (int64_t i = 0; i < values.size(); ++i) rounded[i] = T(values[i]);
  return rounded;
}

Array<int32_t> indices(Shape shape, const std::vector<int32_t>& values) { return Array<int32_t>::of(shape, values); }

// Four rows with three picks each of nine rows; the third has one pick only, the last none.
const std::vector<int32_t> kPicks = {3, 0, 8, 7, -1, 1, -1, 6, -1, -1, -1, -1};
constexpr int64_t kRows = 4, kPicksOfRow = 3, kInputs = 9;

}  // namespace

TEMPLATE_TEST_CASE("rows are copied bit by bit, -1 gives zeros", "[quick][ops][moe]", bfloat16, float, double) {
  using T = TestType;
  const std::vector<int32_t> index = {4, -1, 0, 4, 2, -1};
  for (const int threads : {1, 3}) {
    const auto device = make_cpu_device(threads);
    for (const int64_t width : {1, 5, 64, 1030}) {
      const auto input = random<T>({5, width}, 1);
      auto output = random<T>({6, width}, 2);
      device->gather_rows({.input = input, .index = indices({6}, index), .output = output});
      for (int64_t i = 0; i < 6; ++i)
        for (int64_t c = 0; c < width; ++c)
          REQUIRE(value_of(output[i * width + c]) ==
                  (index[static_cast<size_t>(i)] < 0 ? 0 : value_of(input[index[static_cast<size_t>(i)] * width + c])));
    }
  }
}

TEMPLATE_TEST_CASE("picked rows are weighed and added in ascending order", "[quick][ops][moe]", float, double) {
  using T = TestType;
  for (const int threads : {1, 3}) {
    const auto device = make_cpu_device(threads);
    for (const int64_t width : {1, 7, 64, 512, 1030})
      for (const bool has_weights : {false, true})
        for (const bool has_addend : {false, true}) {
          const auto input = random<T>({kInputs, width}, 1), addend = random<T>({kRows, width}, 2),
                     weights = random<T>({kRows, kPicksOfRow}, 3);
          auto output = random<T>({kRows, width}, 4);
          device->combine_rows({.input = input,
                                .index = indices({kRows, kPicksOfRow}, kPicks),
                                .weights = has_weights ? weights.tensor() : Tensor(),
                                .addend = has_addend ? addend.tensor() : Tensor(),
                                .output = output});
          Array<double> expected({kRows, width});
          for (int64_t t = 0; t < kRows; ++t)
            for (int64_t c = 0; c < width; ++c) {
              double& sum = expected[t * width + c];
              if (has_addend) sum = value_of(addend[t * width + c]);
              for (int64_t j = 0; j < kPicksOfRow; ++j) {
                const int32_t pick = kPicks[static_cast<size_t>(t * kPicksOfRow + j)];
                const double weight = has_weights ? value_of(weights[t * kPicksOfRow + j]) : 1;
                if (pick >= 0) sum += weight * value_of(input[pick * width + c]);
              }
            }
          REQUIRE(difference(output, expected) < kRounding<T>);
        }
  }
}

TEST_CASE("sums of bf16 rows are rounded once", "[quick][ops][moe]") {
  const auto device = make_cpu_device(2);
  // Neighbours of 1 are 2^-7 away: rounded one by one the additions would leave 1.
  const std::vector<float> rows = {1, 0x1p-8F, 0x1p-9F, 0x1p-9F};
  Array<bfloat16> input({4, 1}), output({1, 1});
  for (int64_t i = 0; i < 4; ++i) input[i] = bfloat16(rows[static_cast<size_t>(i)]);
  device->combine_rows({.input = input, .index = indices({1, 4}, {0, 1, 2, 3}), .output = output});
  REQUIRE(value_of(output[0]) == 1 + 0x1p-7);
  // So is an addend in fp32.
  const auto addend = Array<float>::of({1, 1}, std::vector<float>{1 + 0x1p-9F});
  device->combine_rows({.input = input, .index = indices({1, 2}, {2, 1}), .addend = addend, .output = output});
  REQUIRE(value_of(output[0]) == 1 + 0x1p-7);

  // Weights stay in fp32: the nearest bf16 to 1 + 2^-10 is 1.
  const auto weight = Array<float>::of({1, 1}, std::vector<float>{1 + 0x1p-10F});
  const auto large = Array<bfloat16>::of({1, 1}, std::vector<bfloat16>{bfloat16(1 + 0x1p-7F)});
  const auto minus = Array<float>::of({1, 1}, std::vector<float>{-1 - 0x1p-7F});
  device->combine_rows(
      {.input = large, .index = indices({1, 1}, {0}), .weights = weight, .addend = minus, .output = output});
  REQUIRE(value_of(output[0]) == Approx(0x1p-10 + 0x1p-17).epsilon(1.0 / 256));
}

TEST_CASE("gradients of weighed rows are those of finite differences", "[quick][ops][moe]") {
  const auto device = make_cpu_device(2);
  for (const int64_t width : {1, 6}) {
    auto input = Array<double>::random({kInputs, width}, 1), weights = Array<double>::random({kRows, kPicksOfRow}, 2);
    const auto d_output = Array<double>::random({kRows, width}, 3);
    const auto index = indices({kRows, kPicksOfRow}, kPicks);
    Array<double> d_input({kInputs, width}), d_weights({kRows, kPicksOfRow}), output({kRows, width});
    device->combine_rows_backward({.input = input,
                                   .index = index,
                                   .weights = weights,
                                   .d_output = d_output,
                                   .d_input = d_input,
                                   .d_weights = d_weights});
    const auto objective = [&] {
      device->combine_rows({.input = input, .index = index, .weights = weights, .output = output});
      return dot(output, d_output);
    };
    CHECK(gradient_error(input.span(), d_input.span(), objective) < 1e-8);
    CHECK(gradient_error(weights.span(), d_weights.span(), objective) < 1e-8);
  }
}

TEST_CASE("backward leaves rows alone that nothing picked, and gives dropped picks no gradient", "[quick][ops][moe]") {
  const auto device = make_cpu_device(1);
  const auto input = random<float>({kInputs, 3}, 1), weights = random<float>({kRows, kPicksOfRow}, 2),
             d_output = random<float>({kRows, 3}, 3), before = random<float>({kInputs, 3}, 4);
  auto d_input = before;
  auto d_weights = random<float>({kRows, kPicksOfRow}, 5);
  device->combine_rows_backward({.input = input,
                                 .index = indices({kRows, kPicksOfRow}, kPicks),
                                 .weights = weights,
                                 .d_output = d_output,
                                 .d_input = d_input,
                                 .d_weights = d_weights});
  for (const int64_t row : {2, 4, 5})
    for (int64_t c = 0; c < 3; ++c) CHECK(d_input[row * 3 + c] == before[row * 3 + c]);
  for (size_t slot = 0; slot < kPicks.size(); ++slot)
    CHECK((d_weights[static_cast<int64_t>(slot)] == 0) == (kPicks[slot] < 0));
}

TEST_CASE("gradients of bf16 rows are rounded once, those of weights not at all", "[quick][ops][moe]") {
  const auto device = make_cpu_device(1);
  constexpr int64_t kWidth = 300;
  const auto input = random<bfloat16>({kInputs, kWidth}, 1), d_output = random<bfloat16>({kRows, kWidth}, 2);
  const auto weights = random<float>({kRows, kPicksOfRow}, 3);
  Array<bfloat16> d_input({kInputs, kWidth});
  Array<float> d_weights({kRows, kPicksOfRow});
  device->combine_rows_backward({.input = input,
                                 .index = indices({kRows, kPicksOfRow}, kPicks),
                                 .weights = weights,
                                 .d_output = d_output,
                                 .d_input = d_input,
                                 .d_weights = d_weights});
  for (int64_t slot = 0; slot < std::ssize(kPicks); ++slot) {
    const int32_t pick = kPicks[static_cast<size_t>(slot)];
    if (pick < 0) continue;
    double product = 0;
    for (int64_t c = 0; c < kWidth; ++c) {
      const bfloat16 gradient = d_output[slot / kPicksOfRow * kWidth + c];
      product += value_of(gradient) * value_of(input[pick * kWidth + c]);
      REQUIRE(value_of(d_input[pick * kWidth + c]) == value_of(bfloat16(weights[slot] * static_cast<float>(gradient))));
    }
    REQUIRE(value_of(d_weights[slot]) == Approx(product).epsilon(1e-5).margin(1e-5));
  }
}

TEST_CASE("no rows are moved and added without a word", "[quick][ops][moe]") {
  const auto device = make_cpu_device(2);
  const Array<float> none({0, 5}), input({3, 5}), no_weights({0, 2});
  const Array<int32_t> no_index({0}), no_picks({0, 2});
  device->gather_rows({.input = input, .index = no_index, .output = none});
  device->gather_rows({.input = none, .index = no_index, .output = none});
  device->combine_rows({.input = none, .index = no_picks, .weights = no_weights, .output = none});
  device->combine_rows_backward({.input = none,
                                 .index = no_picks,
                                 .weights = no_weights,
                                 .d_output = none,
                                 .d_input = none,
                                 .d_weights = no_weights});
  // All picks dropped: the sum is the addend, or nothing.
  auto output = random<float>({2, 5}, 1);
  device->combine_rows({.input = none, .index = indices({2, 2}, {-1, -1, -1, -1}), .output = output});
  for (int64_t i = 0; i < output.size(); ++i) CHECK(output[i] == 0);
}

TEST_CASE("moves between tensors of other widths and lengths are refused", "[quick][ops][moe]") {
  const auto device = make_cpu_device(1);
  const Array<float> input({3, 5}), output({2, 5}), narrow_output({2, 4}), weights({2, 2}), few_weights({2, 1});
  const auto index = indices({2}, {0, 1});
  CHECK_NOTHROW(device->gather_rows({.input = input, .index = index, .output = output}));
  CHECK_THROWS_AS(device->gather_rows({.input = input, .index = index, .output = narrow_output}), CheckFailure);
  const auto picks = indices({2, 2}, {0, 1, 2, -1});
  CHECK_NOTHROW(device->combine_rows({.input = input, .index = picks, .weights = weights, .output = output}));
  CHECK_THROWS_AS(device->combine_rows({.input = input, .index = picks, .weights = few_weights, .output = output}),
                  CheckFailure);
  CHECK_THROWS_AS(device->combine_rows({.input = input, .index = picks, .weights = weights, .output = narrow_output}),
                  CheckFailure);
}
