#include "kernels/cpu/activation.h"

#include <limits>

#include "kernels/cuda/activation.h"
#include "kernels/cuda/bias.h"
#include "kernels/cuda/swiglu.h"
#include "tests/gpu_kernels/twins.h"

using namespace quintet;
using namespace quintet::testing;

namespace {

constexpr double kTolerance = 1e-6;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

const std::pair<kernels::cpu::ActivationKind, kernels::cuda::ActivationKind> kKinds[] = {
    {kernels::cpu::ActivationKind::gelu, kernels::cuda::ActivationKind::gelu},
    {kernels::cpu::ActivationKind::gelu_exact, kernels::cuda::ActivationKind::gelu_exact},
    {kernels::cpu::ActivationKind::relu_squared, kernels::cuda::ActivationKind::relu_squared}};

}  // namespace

TEMPLATE_TEST_CASE("activations behind a bias are their twins'", "[quick][activation]", float, bfloat16) {
  using T = TestType;
  const Stream stream;
  for (const auto& [on_cpu, on_device] : kKinds) {
    for (const int64_t width : {1, 7, 64, 1000, 2056}) {
      for (const bool with_bias : {false, true}) {
        const auto x = random_values<T>(3 * width, 1, 3), bias = random_values<T>(width, 2);
        std::vector<float> pre = widened(x), expected(x.size());
        if (with_bias) {
          kernels::cpu::add_bias(1, 3, width, widened(bias).data(), pre.data());
          pre = rounded<T>(pre);
        }
        kernels::cpu::bias_activation_forward<float>(1, on_cpu, 3, width, nullptr, pre.data(), expected.data());
        const DeviceArray<T> x_d(x), bias_d(bias), output(3 * width);
        kernels::cuda::bias_activation_forward<T>(on_device, 3, width, with_bias ? bias_d.data() : nullptr, x_d, output,
                                                  stream);
        require_equal(x_d.read(stream), pre);
        require_near(output.read(stream), expected, kTolerance);
      }
    }
  }
}

TEMPLATE_TEST_CASE("slopes of activations are their twins', at extremes too", "[quick][activation]", float, bfloat16) {
  using T = TestType;
  const Stream stream;
  for (const auto& [on_cpu, on_device] : kKinds) {
    for (const int64_t elements : {1, 7, 64, 1003, 4096}) {
      auto x = random_values<T>(elements, 1, 3);
      if (elements > 10) {
        for (const size_t i : {0, 1, 2, 3}) x[i] = T(i % 2 == 0 ? 60.0F : -60.0F);
      }
      const auto gradient = random_values<T>(elements, 2);
      std::vector<float> expected = widened(gradient);
      kernels::cpu::activation_backward<float>(1, on_cpu, elements, widened(x).data(), expected.data(),
                                               expected.data());
      const DeviceArray<T> x_d(x), gradient_d(gradient);
      kernels::cuda::activation_backward<T>(on_device, elements, x_d, gradient_d, stream);
      require_near(gradient_d.read(stream), expected, 3 * kTolerance);
    }
  }
  // NaN is never hidden.
  const DeviceArray<float> nan(std::vector<float>(8, std::numeric_limits<float>::quiet_NaN())), slope(8);
  for (const auto& [on_cpu, on_device] : kKinds) {
    const DeviceArray<float> ones(std::vector<float>(8, 1));
    kernels::cuda::activation_backward<float>(on_device, 8, nan, ones, stream);
    for (const float value : ones.read(stream)) CHECK(std::isnan(value));
    kernels::cuda::bias_activation_forward<float>(on_device, 1, 8, nullptr, nan, slope, stream);
    for (const float value : slope.read(stream)) CHECK(std::isnan(value));
  }
}

TEMPLATE_TEST_CASE("a bias is added to each row, its gradient is the sum of rows", "[quick][activation]", float,
                   bfloat16) {
  using T = TestType;
  const Stream stream;
  for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{1, 1}, {3, 33}, {2, 2056}, {1500, 64}, {129, 40}}) {
    const auto values = random_values<T>(rows * width, 1), bias = random_values<T>(width, 2);
    std::vector<float> expected = widened(values);
    kernels::cpu::add_bias(1, rows, width, widened(bias).data(), expected.data());
    const DeviceArray<T> values_d(values), bias_d(bias);
    kernels::cuda::add_bias<T>(rows, width, bias_d, values_d, stream);
    require_equal(values_d.read(stream), rounded<T>(expected));

    // Whole numbers have exact sums in any order; the gradient is added to what is there.
    std::vector<T> whole(values.size());
    for (size_t i = 0; i < whole.size(); ++i) whole[i] = T(static_cast<float>(philox(1, i, 0)[0] % 8));
    std::vector<float> sums(static_cast<size_t>(width), 5);
    for (size_t i = 0; i < whole.size(); ++i) sums[i % sums.size()] += static_cast<float>(whole[i]);
    const DeviceArray<T> whole_d(whole);
    const DeviceArray<float> gradient(std::vector<float>(static_cast<size_t>(width), 5));
    const DeviceArray<uint8_t> workspace(kernels::cuda::bias_gradient_workspace(rows, width));
    kernels::cuda::bias_gradient<T, float>(rows, width, whole_d, gradient, workspace, stream);
    require_equal(gradient.read(stream), sums);
  }
}

TEMPLATE_TEST_CASE("swiglu and its gradients are their twins'", "[quick][activation]", float, bfloat16) {
  using T = TestType;
  const Stream stream;
  for (const int64_t elements : {1, 7, 64, 1003, 4096}) {
    auto gate = random_values<T>(elements, 1, 3);
    if (elements > 10) {
      gate[0] = T(100.0F);
      gate[1] = T(-100.0F);
      gate[2] = T(-kInfinity);
    }
    const auto up = random_values<T>(elements, 2), d_output = random_values<T>(elements, 3);
    std::vector<float> output(up.size()), d_gate(up.size()), d_up(up.size());
    kernels::cpu::swiglu_forward(1, elements, widened(gate).data(), widened(up).data(), output.data());
    kernels::cpu::swiglu_backward(1, elements, widened(gate).data(), widened(up).data(), widened(d_output).data(),
                                  d_gate.data(), d_up.data());
    const DeviceArray<T> gate_d(gate), up_d(up), d_output_d(d_output), output_d(elements);
    kernels::cuda::swiglu_forward<T>(elements, gate_d, up_d, output_d, stream);
    // In place, as the model does.
    kernels::cuda::swiglu_backward<T>(elements, gate_d, up_d, d_output_d, gate_d, up_d, stream);
    const auto compare = [&](const DeviceArray<T>& got, const std::vector<float>& expected) {
      auto values = got.read(stream);
      auto wanted = expected;
      if (elements > 10) values[2] = T(wanted[2] = 0);  // -inf times a small number: judged apart
      require_near(values, wanted, 3 * kTolerance);
    };
    compare(output_d, output);
    compare(gate_d, d_gate);
    compare(up_d, d_up);
  }
}
