#include <catch2/catch.hpp>

#include <limits>

#include "lib/device/device.h"
#include "tests/support/arrays.h"

using namespace quintet;
using namespace quintet::device;
using namespace quintet::testing;

TEST_CASE("fill writes every type", "[quick][ops]") {
  const auto device = make_cpu_device(2);
  const auto filled = [&]<typename T>(T expected, double value) {
    Array<T> array({40000});
    device->fill(array, value);
    return std::all_of(array.span().begin(), array.span().end(),
                       [&](const T& x) { return std::memcmp(&x, &expected, sizeof(T)) == 0; });
  };
  CHECK(filled(2.5, 2.5));
  CHECK(filled(2.5F, 2.5));
  CHECK(filled(bfloat16(2.5F), 2.5));
  CHECK(filled(int64_t{-7}, -7));
  CHECK(filled(int32_t{-7}, -7));
  CHECK(filled(uint8_t{7}, 7));
}

TEST_CASE("copies cast between floating types with one rounding", "[quick][ops]") {
  const auto device = make_cpu_device(2);
  const auto wide = Array<double>::random({3, 11111}, 1);
  Array<float> single({33333});
  Array<double> back({33333});
  Array<bfloat16> brief({33333}), twice({33333});
  device->copy(wide, single);
  device->copy(single, back);
  for (int64_t i = 0; i < wide.size(); ++i) REQUIRE(back[i] == static_cast<double>(static_cast<float>(wide[i])));
  device->copy(single, brief);
  for (int64_t i = 0; i < wide.size(); ++i) REQUIRE(brief[i].bits == bfloat16(single[i]).bits);
  Array<float> from_brief({33333});
  device->copy(brief, from_brief);
  for (int64_t i = 0; i < wide.size(); ++i) REQUIRE(from_brief[i] == static_cast<float>(brief[i]));

  // fp64 to bf16: just above and below a tie that fp32 cannot tell from the tie.
  const auto ties = Array<double>::of(
      {4}, std::vector<double>{1 + 0x1p-8 + 0x1p-40, 1 + 0x3p-8 - 0x1p-40, -1 - 0x1p-8 - 0x1p-40, 1e300});
  Array<bfloat16> rounded({4});
  device->copy(ties, rounded);
  CHECK(static_cast<float>(rounded[0]) == 1 + 0x1p-7F);
  CHECK(static_cast<float>(rounded[1]) == 1 + 0x1p-7F);
  CHECK(static_cast<float>(rounded[2]) == -1 - 0x1p-7F);
  CHECK(std::isinf(static_cast<float>(rounded[3])));
}

TEST_CASE("transposed rows stand where they belong, and stand again where they stood", "[quick][ops]") {
  for (const int threads : {1, 3}) {
    const auto device = make_cpu_device(threads);
    const auto check = [&]<typename T>(T) {
      constexpr int64_t kOuter = 700, kInner = 5, kWidth = 3;
      const auto input = Array<T>::random({kOuter, kInner, kWidth}, 1);
      const Array<T> output({kInner, kOuter, kWidth}), again({kOuter, kInner, kWidth});
      device->transpose_rows(input, output);
      for (int64_t o = 0; o < kOuter; ++o)
        for (int64_t i = 0; i < kInner; ++i)
          for (int64_t w = 0; w < kWidth; ++w)
            REQUIRE(output[(i * kOuter + o) * kWidth + w] == input[(o * kInner + i) * kWidth + w]);
      device->transpose_rows(output, again);
      CHECK(same_bits(again, input));
    };
    check(1.0F);
    check(1.0);
    CHECK_THROWS_AS(device->transpose_rows(Array<float>({2, 3, 4}), Array<float>({2, 3, 4})), CheckFailure);
  }
}

TEST_CASE("copies keep integers and refuse to cast them", "[quick][ops]") {
  const auto device = make_cpu_device(3);
  Array<int64_t> from({600000}), to({600000});
  for (int64_t i = 0; i < from.size(); ++i) from[i] = i * i;
  device->copy(from, to);
  CHECK(same_bits(from, to));
  CHECK_THROWS_AS(device->copy(Array<int32_t>({3}), Array<int64_t>({3})), CheckFailure);
  CHECK_THROWS_AS(device->copy(Array<float>({3}), Array<int32_t>({3})), CheckFailure);
  CHECK_THROWS_AS(device->copy(Array<float>({3}), Array<float>({4})), CheckFailure);
}

TEST_CASE("finiteness is seen at every place", "[quick][ops]") {
  const auto device = make_cpu_device(3);
  for (const int64_t count : {1, 7, 33, 50001}) {
    auto values = Array<float>::random({count}, 1, 1e38);
    for (float& value : values.span()) value = std::fmin(std::fmax(value, -3e38F), 3e38F);
    CHECK(device->all_finite(values));
    for (const int64_t place : {int64_t{0}, count / 2, count - 1}) {
      for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()}) {
        const float before = std::exchange(values[place], bad);
        CHECK(!device->all_finite(values));
        values[place] = before;
      }
    }
  }
  CHECK(device->all_finite(Array<double>({0})));
}

TEST_CASE("squared norm adds all tensors exactly", "[quick][ops]") {
  const auto device = make_cpu_device(3);
  const auto one = Array<float>::random({100001}, 1, 1e-3);
  const auto two = Array<double>::random({333}, 2, 1e3);
  ExactSum expected, sum;
  expected.add(1.0);
  sum.add(1.0);
  for (const float x : one.span()) expected.add(static_cast<double>(x) * static_cast<double>(x));
  for (const double x : two.span()) expected.add(x * x);
  const std::vector<Tensor> tensors = {one, two};
  device->squared_norm(tensors, sum);
  CHECK(sum.value() == expected.value());
}

TEMPLATE_TEST_CASE("adamw follows its formula", "[quick][ops][adamw]", float, double) {
  using T = TestType;
  const auto device = make_cpu_device(2);
  const AdamwStep step = {.learning_rate = 0.01,
                          .beta1 = 0.9,
                          .beta2 = 0.95,
                          .epsilon = 1e-8,
                          .weight_decay = 0.1,
                          .gradient_scale = 0.5,
                          .update = 3};
  for (const int64_t count : {1, 7, 20001}) {
    for (const bool decay : {false, true}) {
      auto weight = Array<T>::random({count}, 1), first = Array<T>::random({count}, 2);
      const auto gradient = Array<T>::random({count}, 3);
      auto second = Array<T>::random({count}, 4);
      for (T& v : second.span()) v *= v;
      const auto old_weight = weight, old_first = first, old_second = second;
      const std::vector<AdamwSpan> spans = {
          {.weight = weight, .gradient = gradient, .first_moment = first, .second_moment = second, .decay = decay}};
      device->adamw(spans, step);
      Array<double> expected({count}), expected_first({count}), expected_second({count});
      for (int64_t i = 0; i < count; ++i) {
        const double w = static_cast<double>(old_weight[i]), g = 0.5 * static_cast<double>(gradient[i]);
        const double m = 0.9 * static_cast<double>(old_first[i]) + 0.1 * g;
        const double v = 0.95 * static_cast<double>(old_second[i]) + 0.05 * g * g;
        const double m_hat = m / (1 - std::pow(0.9, 3)), v_hat = v / (1 - std::pow(0.95, 3));
        expected_first[i] = m;
        expected_second[i] = v;
        expected[i] = w - 0.01 * (m_hat / (std::sqrt(v_hat) + 1e-8) + (decay ? 0.1 * w : 0.0));
      }
      CHECK(difference(first, expected_first) < 3e-2 * kRounding<T>);
      CHECK(difference(second, expected_second) < 3e-2 * kRounding<T>);
      CHECK(difference(weight, expected) < 1e-1 * kRounding<T>);
    }
  }
}

TEST_CASE("adamw leaves a weight without gradient and moments where it is, but for decay", "[quick][ops][adamw]") {
  const auto device = make_cpu_device(1);
  Array<float> weight({1}), gradient({1}), first({1}), second({1});
  weight[0] = 2;
  AdamwSpan span = {
      .weight = weight, .gradient = gradient, .first_moment = first, .second_moment = second, .decay = false};
  const AdamwStep step = {.learning_rate = 0.5, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.25};
  device->adamw(std::span(&span, 1), step);
  CHECK(weight[0] == 2.0F);
  span.decay = true;
  device->adamw(std::span(&span, 1), step);
  CHECK(weight[0] == 1.75F);
}

TEST_CASE("adamw gives an element the same bits wherever a span is cut", "[quick][ops][adamw]") {
  const auto device = make_cpu_device(1);
  const int64_t count = 1003;
  auto weight = Array<float>::random({count}, 1), first = Array<float>::random({count}, 2, 1e-3),
       second = Array<float>::random({count}, 3, 1e-5);
  for (float& v : second.span()) v *= v;
  const auto gradient = Array<float>::random({count}, 4, 1e-3);
  auto cut_weight = weight, cut_first = first, cut_second = second;
  const AdamwStep step = {.learning_rate = 1e-3,
                          .beta1 = 0.9,
                          .beta2 = 0.95,
                          .epsilon = 1e-8,
                          .weight_decay = 0.1,
                          .gradient_scale = 0.7,
                          .update = 5};
  const AdamwSpan whole = {
      .weight = weight, .gradient = gradient, .first_moment = first, .second_moment = second, .decay = true};
  device->adamw(std::span(&whole, 1), step);
  std::vector<AdamwSpan> spans;
  for (int64_t begin = 0, size = 1; begin < count; begin += size, size += 2) {
    const int64_t n = std::min(size, count - begin);
    spans.push_back({.weight = cut_weight.tensor().rows(begin, n),
                     .gradient = gradient.tensor().rows(begin, n),
                     .first_moment = cut_first.tensor().rows(begin, n),
                     .second_moment = cut_second.tensor().rows(begin, n),
                     .decay = true});
  }
  device->adamw(spans, step);
  CHECK(same_bits(weight, cut_weight));
  CHECK(same_bits(first, cut_first));
  CHECK(same_bits(second, cut_second));
}
