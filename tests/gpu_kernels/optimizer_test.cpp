#include "kernels/cpu/adamw.h"
#include "kernels/cpu/elementwise.h"

#include <limits>

#include "kernels/cuda/adamw.h"
#include "kernels/cuda/elementwise.h"
#include "tests/gpu_kernels/twins.h"

using namespace quintet;
using namespace quintet::testing;

TEMPLATE_TEST_CASE("AdamW updates spans of any cut to its twin's bits", "[quick][optimizer]", float, bfloat16) {
  using G = TestType;
  const Stream stream;
  const int64_t elements = 9000;
  const auto gradient = random_values<G>(elements, 1, 0.1);
  const auto weight = random_values<float>(elements, 2), first = random_values<float>(elements, 3, 0.01);
  auto second = random_values<float>(elements, 4, 0.01);
  for (float& value : second) value = value * value;
  const kernels::cpu::AdamwArgs plain = {.learning_rate = 1e-3,
                                         .beta1 = 0.9,
                                         .beta2 = 0.95,
                                         .epsilon = 1e-8,
                                         .weight_decay = 0.1,
                                         .gradient_scale = 0.7,
                                         .update = 3,
                                         .threads = 1};
  // Decay belongs to the even spans. 60 spans are more than one launch takes.
  const std::vector<int64_t> whole = {0, elements}, uneven = {0, 1, 5, 1029, 1029, 4000, 8191, elements};
  std::vector<int64_t> many;
  for (int64_t i = 0; i <= 60; ++i) many.push_back(i * 150);
  for (const std::vector<int64_t>& cuts : {whole, uneven, many}) {
    std::vector<float> expected = weight, expected_first = first, expected_second = second;
    const DeviceArray<G> gradient_d(gradient);
    const DeviceArray<float> weight_d(weight), first_d(first), second_d(second);
    const DeviceArray<bfloat16> rounded_d(elements);
    std::vector<kernels::cuda::AdamwSpan<G>> spans;
    for (size_t s = 0; s + 1 < cuts.size(); ++s) {
      const int64_t at = cuts[s], count = cuts[s + 1] - at;
      const bool decay = s % 2 == 0;
      spans.push_back({count, gradient_d + at, weight_d + at, first_d + at, second_d + at, rounded_d + at, decay});
      kernels::cpu::AdamwArgs twin = plain;
      if (!decay) twin.weight_decay = 0;
      float* master = expected.data() + at;
      kernels::cpu::adamw(twin, count, widened(gradient).data() + at, master, expected_first.data() + at,
                          expected_second.data() + at, master);
    }
    const kernels::cuda::AdamwArgs args = {plain.learning_rate, plain.beta1,          plain.beta2, plain.epsilon,
                                           plain.weight_decay,  plain.gradient_scale, plain.update};
    kernels::cuda::adamw<G>(args, spans, stream);
    require_equal(first_d.read(stream), expected_first);
    require_equal(second_d.read(stream), expected_second);
    require_equal(weight_d.read(stream), expected);
    require_equal(rounded_d.read(stream), rounded<bfloat16>(expected));
  }
}

TEMPLATE_TEST_CASE("partial sums of squares add to the twin's sum, cut into runs or not", "[quick][optimizer]", float,
                   bfloat16) {
  using T = TestType;
  const Stream stream;
  constexpr int64_t kRun = kernels::cuda::kSquaresPerPartial;
  for (const int64_t elements : {int64_t{1}, int64_t{1000}, kRun, 2 * kRun + 12, 3 * kRun + 7}) {
    const auto values = random_values<T>(elements, 1);
    const DeviceArray<T> values_d(values);
    const auto sum_of = [&](int64_t cut) {
      const int64_t before = ceil_div(cut, kRun);
      const DeviceArray<double> partial(ceil_div(elements, kRun));
      kernels::cuda::squared_norm<T>(cut, values_d, partial, stream);
      kernels::cuda::squared_norm<T>(elements - cut, values_d + cut, partial + before, stream);
      ExactSum sum;
      for (const double part : partial.read(stream)) sum.add(part);
      return sum.value();
    };
    ExactSum expected;
    kernels::cpu::squared_norm(1, elements, widened(values).data(), expected);
    CHECK(sum_of(0) == Approx(expected.value()).epsilon(1e-14));
    if (elements > kRun) CHECK(sum_of(kRun) == sum_of(0));
  }
}

TEST_CASE("casts round as their twins, fills and scales reach every element", "[quick][optimizer]") {
  const Stream stream;
  for (const int64_t elements : {1, 7, 64, 5003}) {
    auto values = random_values<float>(elements, 1);
    if (elements > 7) values[3] = std::numeric_limits<float>::infinity();
    std::vector<bfloat16> expected(values.size());
    kernels::cpu::cast(1, elements, values.data(), expected.data());
    const DeviceArray<float> values_d(values), back(elements);
    const DeviceArray<bfloat16> narrow_d(elements);
    kernels::cuda::cast(elements, static_cast<const float*>(values_d), narrow_d.data(), stream);
    kernels::cuda::cast(elements, static_cast<const bfloat16*>(narrow_d), back.data(), stream);
    require_equal(back.read(stream), widened(expected));
    kernels::cuda::scale<float>(elements, -0.5F, values_d, stream);
    kernels::cpu::scale(1, elements, -0.5F, values.data());
    require_equal(values_d.read(stream), values);
    kernels::cuda::fill<float>(elements, 3.25F, values_d, stream);
    require_equal(values_d.read(stream), std::vector<float>(values.size(), 3.25F));
  }
}

TEST_CASE("rows are transposed in pieces of any size", "[quick][rows]") {
  const Stream stream;
  constexpr int64_t kOuter = 3, kInner = 5;
  for (const int64_t bytes : {1, 2, 6, 12, 48, 4112}) {
    CAPTURE(bytes);
    std::vector<uint8_t> from(static_cast<size_t>(kOuter * kInner * bytes));
    for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint8_t>(philox(1, i, 0)[0]);
    std::vector<uint8_t> expected(from.size());
    kernels::cpu::transpose_rows(1, kOuter, kInner, bytes, from.data(), expected.data());
    const DeviceArray<uint8_t> from_d(from), to_d(static_cast<int64_t>(from.size()));
    kernels::cuda::transpose_rows(kOuter, kInner, bytes, from_d, to_d, stream);
    REQUIRE((to_d.read(stream) == expected));
  }
}

TEMPLATE_TEST_CASE("one element that is not finite is noticed wherever it lies", "[quick][optimizer]", float,
                   bfloat16) {
  using T = TestType;
  const Stream stream;
  const auto finite = [&](const std::vector<T>& values) {
    const DeviceArray<T> values_d(values);
    const DeviceArray<int32_t> flag(std::vector<int32_t>{1});
    kernels::cuda::check_finite<T>(values_d.size(), values_d, flag, stream);
    return flag.read(stream)[0];
  };
  for (const int64_t elements : {1, 9, 4096}) {
    const auto values = random_values<T>(elements, 1);
    CHECK(finite(values) == 1);
    for (const int64_t at : {int64_t{0}, elements / 2, elements - 1}) {
      for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
        auto spoilt = values;
        spoilt[static_cast<size_t>(at)] = T(bad);
        CHECK(finite(spoilt) == 0);
      }
    }
  }
}
