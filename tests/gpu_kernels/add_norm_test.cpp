#include "kernels/cuda/add_norm.h"

#include "kernels/cpu/add_norm.h"
#include "tests/gpu_kernels/twins.h"

using namespace quintet;
using namespace quintet::testing;

namespace {

constexpr double kEpsilon = 1e-5;
constexpr double kTolerance = 1e-5;
constexpr double kSumTolerance = 4e-5;  // of sums over a thousand rows, in two orders

struct Shape {
  int64_t rows, width;
};
constexpr Shape kShapes[] = {{1, 1}, {3, 5}, {7, 33}, {5, 64}, {2, 1000}, {3, 1030}, {2, 4104}, {1, 8191}, {1, 16384}};

kernels::cpu::Norm twin_of(kernels::cuda::Norm norm) {
  return norm == kernels::cuda::Norm::layer ? kernels::cpu::Norm::layer : kernels::cpu::Norm::root_mean_square;
}

}  // namespace

TEMPLATE_TEST_CASE("add_norm's sum, output and statistics are its twin's", "[quick][norm]", float, bfloat16) {
  using T = TestType;
  const Stream stream;
  for (const auto norm : {kernels::cuda::Norm::layer, kernels::cuda::Norm::root_mean_square}) {
    const bool layer = norm == kernels::cuda::Norm::layer;
    for (const auto [rows, width] : kShapes) {
      for (const double probability : {0.0, 0.3}) {
        const auto residual = random_values<T>(rows * width, 1), branch = random_values<T>(rows * width, 2);
        const auto weight = random_values<T>(width, 3), bias = random_values<T>(width, 4);
        std::vector<int64_t> keys(static_cast<size_t>(rows));
        for (size_t t = 0; t < keys.size(); ++t) keys[t] = static_cast<int64_t>(1000 * t + 3);

        // The sum is rounded to T before its norm is taken.
        const size_t elements = residual.size();
        std::vector<float> sum(elements), output(elements), mean(keys.size()), inverse(keys.size());
        const kernels::cpu::DropoutMask mask = {
            .probability = probability, .seed = 5, .stream = 6, .rows = keys.data()};
        kernels::cpu::add_dropout(1, mask, rows, width, widened(residual).data(), widened(branch).data(), sum.data());
        sum = rounded<T>(sum);
        const std::vector<float> wide_weight = widened(weight), wide_bias = widened(bias);
        kernels::cpu::AddNormForwardArgs<float> twin;
        twin.norm = twin_of(norm);
        twin.rows = rows;
        twin.width = width;
        twin.epsilon = kEpsilon;
        twin.residual = sum.data();
        twin.weight = wide_weight.data();
        twin.bias = layer ? wide_bias.data() : nullptr;
        twin.output = output.data();
        twin.mean = mean.data();
        twin.inverse_deviation = inverse.data();
        kernels::cpu::add_norm_forward(twin);

        const DeviceArray<T> residual_d(residual), branch_d(branch), weight_d(weight), bias_d(bias),
            sum_d(rows * width), output_d(rows * width);
        const DeviceArray<int64_t> keys_d(keys);
        const DeviceArray<float> mean_d(rows), inverse_d(rows);
        kernels::cuda::AddNormForwardArgs<T> args;
        args.norm = norm;
        args.rows = rows;
        args.width = width;
        args.epsilon = kEpsilon;
        args.residual = residual_d;
        args.branch = branch_d;
        args.dropout = {.probability = probability, .seed = 5, .stream = 6, .rows = keys_d};
        args.residual_output = sum_d;
        args.weight = weight_d;
        args.bias = layer ? bias_d.data() : nullptr;
        args.output = output_d;
        args.mean = layer ? mean_d.data() : nullptr;
        args.inverse_deviation = inverse_d;
        kernels::cuda::add_norm_forward(args, stream);
        require_equal(sum_d.read(stream), sum);
        require_near(output_d.read(stream), output, kTolerance);
        require_near(inverse_d.read(stream), inverse, kTolerance);
        if (layer) require_near(mean_d.read(stream), mean, kTolerance);

        // Without a branch the residual itself is normalised.
        args.residual = sum_d;
        args.branch = nullptr;
        args.residual_output = nullptr;
        const auto with_branch = output_d.read(stream);
        kernels::cuda::add_norm_forward(args, stream);
        require_equal(output_d.read(stream), widened(with_branch));
      }
    }
  }
}

TEMPLATE_TEST_CASE("a norm's gradients are its twin's", "[quick][norm]", float, bfloat16) {
  using T = TestType;
  const Stream stream;
  for (const auto norm : {kernels::cuda::Norm::layer, kernels::cuda::Norm::root_mean_square}) {
    const bool layer = norm == kernels::cuda::Norm::layer;
    for (const auto [rows, width] :
         {Shape{1, 1}, {3, 5}, {1030, 33}, {133, 64}, {2, 1000}, {2, 1030}, {1, 8191}, {1, 16384}}) {
      const auto input = random_values<T>(rows * width, 1), d_output = random_values<T>(rows * width, 2),
                 d_input = random_values<T>(rows * width, 3), weight = random_values<T>(width, 4);
      std::vector<float> mean = random_values<float>(rows, 5, 0.1), inverse = random_values<float>(rows, 6, 0.1);
      for (float& value : inverse) value += 1;
      const std::vector<float> before = random_values<float>(width, 7);
      const std::vector<float> wide_input = widened(input), wide_weight = widened(weight),
                               wide_gradient = widened(d_output);
      const DeviceArray<T> input_d(input), weight_d(weight), d_output_d(d_output);
      const DeviceArray<float> mean_d(mean), inverse_d(inverse);
      for (const bool accumulate : {false, true}) {
        std::vector<float> expected = widened(d_input), weight_gradient = before, bias_gradient = before;
        kernels::cpu::NormBackwardArgs<float> twin;
        twin.norm = twin_of(norm);
        twin.rows = rows;
        twin.width = width;
        twin.input = wide_input.data();
        twin.weight = wide_weight.data();
        twin.mean = mean.data();
        twin.inverse_deviation = inverse.data();
        twin.d_output = wide_gradient.data();
        twin.d_input = expected.data();
        twin.accumulate = accumulate;
        kernels::cpu::norm_backward_input(twin);
        kernels::cpu::norm_backward_parameters(twin, weight_gradient.data(), layer ? bias_gradient.data() : nullptr);

        const DeviceArray<T> d_input_d(d_input);
        const DeviceArray<float> weight_gradient_d(before), bias_gradient_d(before);
        const DeviceArray<uint8_t> workspace(kernels::cuda::norm_backward_workspace(rows, width));
        kernels::cuda::NormBackwardArgs<T> args;
        args.norm = norm;
        args.rows = rows;
        args.width = width;
        args.input = input_d;
        args.weight = weight_d;
        args.mean = layer ? mean_d.data() : nullptr;
        args.inverse_deviation = inverse_d;
        args.d_output = d_output_d;
        args.d_input = d_input_d;
        args.accumulate = accumulate;
        kernels::cuda::norm_backward_input(args, stream);
        kernels::cuda::norm_backward_parameters<T, float>(args, weight_gradient_d,
                                                          layer ? bias_gradient_d.data() : nullptr, workspace, stream);
        require_near(d_input_d.read(stream), expected, kTolerance);
        require_near(weight_gradient_d.read(stream), weight_gradient, kSumTolerance);
        require_near(bias_gradient_d.read(stream), bias_gradient, kSumTolerance);
      }
    }
  }
}
