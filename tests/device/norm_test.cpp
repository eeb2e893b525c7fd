#include <catch2/catch.hpp>

#include "lib/device/device.h"
#include "tests/support/arrays.h"
#include "tests/support/finite_difference.h"

using namespace quintet;
using namespace quintet::device;
using namespace quintet::testing;

namespace {

constexpr double kEpsilon = 1e-3;

// The operands of one norm over x [rows, width].
template <typename T>
struct Norm {
  NormKind kind;
  Array<T> x, weight, bias, output, mean, inverse_deviation;

  Norm(NormKind norm, int64_t rows, int64_t width)
      : kind(norm),
        x(Array<T>::random({rows, width}, 1)),
        weight(Array<T>::random({width}, 2)),
        bias(Array<T>::random({width}, 3)),
        output({rows, width}),
        mean({rows}),
        inverse_deviation({rows}) {}

  void forward(Device& device) {
    device.add_norm_forward({.kind = kind,
                             .epsilon = kEpsilon,
                             .residual = x,
                             .branch = {},
                             .dropout = {},
                             .residual_output = {},
                             .weight = weight,
                             .bias = kind == NormKind::layernorm ? bias.tensor() : Tensor(),
                             .output = output,
                             .mean = kind == NormKind::layernorm ? mean.tensor() : Tensor(),
                             .inverse_deviation = inverse_deviation});
  }

  // One row's statistics and output in fp64.
  void expect_row(int64_t t, int64_t width) const {
    double average = 0, variance = 0;
    const auto at = [&](int64_t c) { return static_cast<double>(x[t * width + c]); };
    if (kind == NormKind::layernorm) {
      for (int64_t c = 0; c < width; ++c) average += at(c) / static_cast<double>(width);
      REQUIRE(static_cast<double>(mean[t]) == Approx(average).margin(kRounding<T>));
    }
    for (int64_t c = 0; c < width; ++c) variance += (at(c) - average) * (at(c) - average) / static_cast<double>(width);
    const double inverse = 1 / std::sqrt(variance + kEpsilon);
    REQUIRE(static_cast<double>(inverse_deviation[t]) == Approx(inverse).epsilon(kRounding<T>));
    for (int64_t c = 0; c < width; ++c) {
      const double expected = (at(c) - average) * inverse * static_cast<double>(weight[c]) +
                              (kind == NormKind::layernorm ? static_cast<double>(bias[c]) : 0);
      REQUIRE(static_cast<double>(output[t * width + c]) == Approx(expected).margin(10 * kRounding<T>));
    }
  }
};

}  // namespace

TEMPLATE_TEST_CASE("a norm of rows agrees with its definition", "[quick][ops][norm]", float, double) {
  const auto device = make_cpu_device(2);
  for (const NormKind kind : {NormKind::layernorm, NormKind::rmsnorm}) {
    for (const int64_t rows : {1, 3, 7}) {
      for (const int64_t width : {1, 5, 33, 64, 1000}) {
        Norm<TestType> norm(kind, rows, width);
        norm.forward(*device);
        for (int64_t t = 0; t < rows; ++t) norm.expect_row(t, width);
      }
    }
  }
}

TEST_CASE("a large mean costs a layer norm no digits of the variance", "[quick][ops][norm]") {
  const auto device = make_cpu_device(1);
  Norm<float> norm(NormKind::layernorm, 1, 64);
  for (float& x : norm.x.span()) x = 1000.0F + 0.25F * static_cast<float>(static_cast<int>(4 * x));
  norm.forward(*device);
  norm.expect_row(0, 64);
}

TEMPLATE_TEST_CASE("a norm adds the dropped branch to the residual first", "[quick][ops][norm]", float, double) {
  using T = TestType;
  const auto device = make_cpu_device(2);
  const int64_t rows = 3, width = 33;
  const auto branch = Array<T>::random({rows, width}, 5);
  const auto keys = Array<int64_t>::of({rows}, std::vector<int64_t>{4, 1000, 7});
  for (const double probability : {0.0, 0.3}) {
    const Dropout dropout = {.probability = probability, .seed = 1, .stream = 2, .rows = keys};
    Norm<T> apart(NormKind::layernorm, rows, width), together = apart;
    const Array<T> residual = apart.x;
    device->add_dropout(residual, branch, dropout, apart.x);
    apart.forward(*device);
    Array<T> sum({rows, width});
    device->add_norm_forward({.kind = NormKind::layernorm,
                              .epsilon = kEpsilon,
                              .residual = residual,
                              .branch = branch,
                              .dropout = dropout,
                              .residual_output = sum,
                              .weight = together.weight,
                              .bias = together.bias,
                              .output = together.output,
                              .mean = together.mean,
                              .inverse_deviation = together.inverse_deviation});
    CHECK(same_bits(sum, apart.x));
    CHECK(same_bits(together.output, apart.output));
    CHECK(!same_bits(sum, residual));
  }
}

TEST_CASE("norm gradients are those of finite differences, added to what is there", "[quick][ops][norm]") {
  const auto device = make_cpu_device(2);
  for (const NormKind kind : {NormKind::layernorm, NormKind::rmsnorm}) {
    for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{3, 5}, {7, 33}, {1, 64}, {130, 2}}) {
      Norm<double> norm(kind, rows, width);
      const bool layer = kind == NormKind::layernorm;
      const auto d_output = Array<double>::random({rows, width}, 4);
      auto d_residual = Array<double>::random({rows, width}, 5), weight_gradient = Array<double>::random({width}, 6),
           bias_gradient = Array<double>::random({width}, 7);
      const auto before = d_residual, weight_before = weight_gradient, bias_before = bias_gradient;
      norm.forward(*device);
      device->add_norm_backward_weight({.kind = kind,
                                        .input = norm.x,
                                        .mean = layer ? norm.mean.tensor() : Tensor(),
                                        .inverse_deviation = norm.inverse_deviation,
                                        .d_output = d_output,
                                        .weight_gradient = weight_gradient,
                                        .bias_gradient = layer ? bias_gradient.tensor() : Tensor()});
      device->add_norm_backward_input({.kind = kind,
                                       .input = norm.x,
                                       .weight = norm.weight,
                                       .mean = layer ? norm.mean.tensor() : Tensor(),
                                       .inverse_deviation = norm.inverse_deviation,
                                       .d_output = d_output,
                                       .d_residual = d_residual});
      for (int64_t i = 0; i < d_residual.size(); ++i) d_residual[i] -= before[i];
      for (int64_t c = 0; c < width; ++c) {
        weight_gradient[c] -= weight_before[c];
        bias_gradient[c] -= bias_before[c];
      }
      const auto objective = [&] {
        norm.forward(*device);
        return dot(norm.output, d_output);
      };
      CHECK(gradient_error(norm.x.span(), d_residual.span(), objective) < 1e-8);
      CHECK(gradient_error(norm.weight.span(), weight_gradient.span(), objective) < 1e-8);
      if (layer) CHECK(gradient_error(norm.bias.span(), bias_gradient.span(), objective) < 1e-8);
    }
  }
}
