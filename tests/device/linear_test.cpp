#include <catch2/catch.hpp>

#include <numbers>

#include "lib/device/device.h"
#include "tests/support/arrays.h"
#include "tests/support/finite_difference.h"

using namespace quintet;
using namespace quintet::device;
using namespace quintet::testing;

namespace {

const std::vector<Activation> kActivations = {Activation::gelu, Activation::gelu_exact, Activation::relu_squared};

double activated(Activation activation, double x) {
  switch (activation) {
    case Activation::none: return x;
    case Activation::gelu: return x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case Activation::gelu_exact: return x / 2 * (1 + std::erf(x / std::numbers::sqrt2));
    case Activation::relu_squared: return x > 0 ? x * x : 0;
  }
  return 0;
}

// The bits of activation(x) for many x at once: a linear layer with K = 1, x = 1 and the values as weights.
template <typename T>
Array<T> activated(Device& device, Activation activation, const Array<T>& values) {
  const int64_t count = values.size();
  Array<T> one({1, 1}), pre_activation({1, count}), output({1, count});
  one[0] = T{1};
  device.linear_forward({.x = one,
                         .weight = values.tensor().reshaped({count, 1}),
                         .bias = {},
                         .activation = activation,
                         .pre_activation = pre_activation,
                         .output = output});
  return output;
}

}  // namespace

TEMPLATE_TEST_CASE("a linear layer is product, bias and activation", "[quick][ops][linear]", float, double) {
  using T = TestType;
  const auto device = make_cpu_device(2);
  for (const auto& [rows, inputs, outputs] :
       {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1}, {3, 5, 33}, {7, 64, 5}, {17, 33, 64}}) {
    const auto x = Array<T>::random({rows, inputs}, 1), weight = Array<T>::random({outputs, inputs}, 2, 0.2),
               bias = Array<T>::random({outputs}, 3);
    for (const Activation activation :
         {Activation::none, Activation::gelu, Activation::gelu_exact, Activation::relu_squared}) {
      for (const bool with_bias : {false, true}) {
        Array<T> pre_activation({rows, outputs}), output({rows, outputs});
        Array<double> expected_pre({rows, outputs}), expected({rows, outputs});
        device->linear_forward({.x = x,
                                .weight = weight,
                                .bias = with_bias ? bias.tensor() : Tensor(),
                                .activation = activation,
                                .pre_activation = pre_activation,
                                .output = output});
        for (int64_t t = 0; t < rows; ++t) {
          for (int64_t m = 0; m < outputs; ++m) {
            double sum = with_bias ? static_cast<double>(bias[m]) : 0;
            for (int64_t k = 0; k < inputs; ++k) {
              sum += static_cast<double>(x[t * inputs + k]) * static_cast<double>(weight[m * inputs + k]);
            }
            expected_pre[t * outputs + m] = sum;
            expected[t * outputs + m] = activated(activation, sum);
          }
        }
        CHECK(difference(pre_activation, expected_pre) < kRounding<T>);
        CHECK(difference(output, expected) < 2 * kRounding<T>);
      }
    }
  }
}

TEST_CASE("fp32 activations stay within 4e-7 of the truth from end to end", "[quick][ops][linear]") {
  const auto device = make_cpu_device(1);
  Array<float> x({40001});
  for (int64_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i - 20000) * 1e-3F;
  for (const Activation activation : kActivations) {
    Array<double> expected({x.size()});
    for (int64_t i = 0; i < x.size(); ++i) expected[i] = activated(activation, static_cast<double>(x[i]));
    CHECK(difference(activated(*device, activation, x), expected) < 4e-7);
  }
}

TEMPLATE_TEST_CASE("activations of huge values are 0 or the value, of NaN are NaN", "[quick][ops][linear]", float,
                   double) {
  using T = TestType;
  const auto device = make_cpu_device(1);
  const auto x = Array<T>::of({4}, std::vector<T>{T(-1e18), T(-200), T(200), std::numeric_limits<T>::quiet_NaN()});
  for (const Activation activation : {Activation::gelu, Activation::gelu_exact}) {
    const Array<T> y = activated(*device, activation, x);
    CHECK(std::abs(y[0]) < 1e-15);
    CHECK(std::abs(y[1]) < 1e-15);
    CHECK(y[2] == T(200));
    CHECK(std::isnan(y[3]));

    // Slopes, through backward with d_output = 1 and weight = 1.
    Array<T> one({1, 1}), row({1, 4}), slope({1, 4});
    one[0] = 1;
    std::fill(row.span().begin(), row.span().end(), T{1});
    device->linear_backward_input({.d_output = one,
                                   .weight = row,
                                   .d_x = slope,
                                   .accumulate = false,
                                   .activation = activation,
                                   .pre_activation = x.tensor().reshaped({1, 4})});
    CHECK(std::abs(slope[0]) < 1e-15);
    CHECK(std::abs(slope[1]) < 1e-15);
    CHECK(slope[2] == T(1));
    CHECK(std::isnan(slope[3]));
  }
  CHECK(std::isnan(activated(*device, Activation::relu_squared, x)[3]));
}

TEST_CASE("linear gradients are those of finite differences through activation and product", "[quick][ops][linear]") {
  const auto device = make_cpu_device(2);
  const int64_t rows = 3, inputs = 5, outputs = 7;
  for (const Activation activation : kActivations) {
    // y = activation(p) w^T + b: the derivative of the activation that made x belongs to the second layer's backward.
    auto pre = Array<double>::random({rows, inputs}, 1), weight = Array<double>::random({outputs, inputs}, 2),
         bias = Array<double>::random({outputs}, 3);
    const auto d_output = Array<double>::random({rows, outputs}, 4);
    Array<double> output({rows, outputs}), d_pre({rows, inputs}), x({rows, inputs});
    const auto objective = [&] {
      for (int64_t i = 0; i < x.size(); ++i) x[i] = activated(activation, pre[i]);
      device->linear_forward({.x = x,
                              .weight = weight,
                              .bias = bias,
                              .activation = Activation::none,
                              .pre_activation = {},
                              .output = output});
      return dot(output, d_output);
    };
    objective();
    auto weight_gradient = Array<double>::random({outputs, inputs}, 5),
         bias_gradient = Array<double>::random({outputs}, 6);
    const auto weight_before = weight_gradient, bias_before = bias_gradient;
    device->linear_backward_input({.d_output = d_output,
                                   .weight = weight,
                                   .d_x = d_pre,
                                   .accumulate = false,
                                   .activation = activation,
                                   .pre_activation = pre});
    device->linear_backward_weight(
        {.x = x, .d_output = d_output, .weight_gradient = weight_gradient, .bias_gradient = bias_gradient});
    for (int64_t i = 0; i < weight_gradient.size(); ++i) weight_gradient[i] -= weight_before[i];
    for (int64_t i = 0; i < outputs; ++i) bias_gradient[i] -= bias_before[i];
    CHECK(gradient_error(pre.span(), d_pre.span(), objective) < 1e-8);
    CHECK(gradient_error(weight.span(), weight_gradient.span(), objective) < 1e-8);
    CHECK(gradient_error(bias.span(), bias_gradient.span(), objective) < 1e-8);
  }
}

TEST_CASE("an input gradient is added where asked", "[quick][ops][linear]") {
  const auto device = make_cpu_device(1);
  const auto d_output = Array<double>::random({3, 5}, 1), weight = Array<double>::random({5, 4}, 2);
  Array<double> fresh({3, 4});
  auto added = Array<double>::random({3, 4}, 3);
  const auto before = added;
  LinearBackwardInput op = {.d_output = d_output,
                            .weight = weight,
                            .d_x = fresh,
                            .accumulate = false,
                            .activation = Activation::none,
                            .pre_activation = {}};
  device->linear_backward_input(op);
  op.d_x = added;
  op.accumulate = true;
  device->linear_backward_input(op);
  for (int64_t i = 0; i < added.size(); ++i) CHECK(added[i] == Approx(before[i] + fresh[i]).margin(1e-14));
  op.activation = Activation::gelu;
  op.pre_activation = fresh;
  CHECK_THROWS_AS(device->linear_backward_input(op), CheckFailure);
}

TEMPLATE_TEST_CASE("swiglu is silu(gate) times up", "[quick][ops][linear]", float, double) {
  using T = TestType;
  const auto device = make_cpu_device(2);
  auto gate = Array<T>::random({7, 33}, 1, 4), up = Array<T>::random({7, 33}, 2), output = Array<T>({7, 33});
  gate[0] = -500;
  gate[1] = 500;
  device->swiglu_forward({.gate = gate, .up = up, .output = output});
  Array<double> expected({7, 33});
  for (int64_t i = 0; i < gate.size(); ++i) {
    const double x = static_cast<double>(gate[i]);
    expected[i] = x / (1 + std::exp(-x)) * static_cast<double>(up[i]);
  }
  CHECK(difference(output, expected) < kRounding<T>);
}

TEST_CASE("swiglu gradients are those of finite differences, also in place", "[quick][ops][linear]") {
  const auto device = make_cpu_device(2);
  auto gate = Array<double>::random({3, 33}, 1, 2), up = Array<double>::random({3, 33}, 2);
  const auto d_output = Array<double>::random({3, 33}, 3);
  Array<double> output({3, 33}), d_gate({3, 33}), d_up({3, 33});
  device->swiglu_backward({.gate = gate, .up = up, .d_output = d_output, .d_gate = d_gate, .d_up = d_up});
  const auto objective = [&] {
    device->swiglu_forward({.gate = gate, .up = up, .output = output});
    return dot(output, d_output);
  };
  CHECK(gradient_error(gate.span(), d_gate.span(), objective) < 1e-8);
  CHECK(gradient_error(up.span(), d_up.span(), objective) < 1e-8);
  device->swiglu_backward({.gate = gate, .up = up, .d_output = d_output, .d_gate = gate, .d_up = up});
  CHECK(same_bits(gate, d_gate));
  CHECK(same_bits(up, d_up));
}
