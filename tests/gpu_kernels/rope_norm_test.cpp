#include "kernels/cpu/rope_norm.h"

#include "kernels/cuda/rope_norm.h"
#include "tests/gpu_kernels/twins.h"

using namespace quintet;
using namespace quintet::testing;

namespace {

constexpr double kEpsilon = 1e-6;
constexpr double kTolerance = 1e-5;

struct Shape {
  int64_t tokens, heads, width;
};
constexpr Shape kShapes[] = {{1, 1, 2},   {3, 5, 6},   {7, 3, 32},  {5, 4, 64},
                             {3, 2, 128}, {2, 3, 256}, {40, 5, 80}, {2, 1, 250}};

// Operands that both sides share; either part of the operation may be missing.
template <typename T>
struct Problem {
  Shape shape;
  bool norm, rotation;
  std::vector<T> input, scale;
  std::vector<float> cosine, sine, wide_scale;
  std::vector<int32_t> positions;
  DeviceArray<T> input_d, scale_d;
  DeviceArray<float> cosine_d, sine_d, inverse_d;
  DeviceArray<int32_t> positions_d;

  static constexpr int64_t kTableRows = 9;

  Problem(const Shape& of, bool with_norm, bool with_rotation)
      : shape(of),
        norm(with_norm),
        rotation(with_rotation),
        input(random_values<T>(rows() * of.width, 1)),
        scale(random_values<T>(of.width, 2)),
        cosine(random_values<float>(kTableRows * of.width / 2, 3)),
        sine(random_values<float>(kTableRows * of.width / 2, 4)),
        wide_scale(widened(scale)),
        positions(static_cast<size_t>(of.tokens)),
        input_d(input),
        scale_d(scale),
        cosine_d(cosine),
        sine_d(sine),
        inverse_d(rows()),
        positions_d(fill_positions()) {}

  const std::vector<int32_t>& fill_positions() {
    for (size_t t = 0; t < positions.size(); ++t) positions[t] = static_cast<int32_t>((5 * t + 3) % kTableRows);
    return positions;
  }
  int64_t rows() const { return shape.tokens * shape.heads; }
  kernels::cpu::RopeNormArgs<float> twin() const {
    return {.tokens = shape.tokens,
            .heads = shape.heads,
            .width = shape.width,
            .scale = norm ? wide_scale.data() : nullptr,
            .epsilon = kEpsilon,
            .cosine = rotation ? cosine.data() : nullptr,
            .sine = rotation ? sine.data() : nullptr,
            .table_rows = kTableRows,
            .positions = positions.data(),
            .threads = 1};
  }
  kernels::cuda::RopeNormArgs<T> args() const {
    return {.tokens = shape.tokens,
            .heads = shape.heads,
            .width = shape.width,
            .scale = norm ? scale_d.data() : nullptr,
            .epsilon = kEpsilon,
            .cosine = rotation ? cosine_d.data() : nullptr,
            .sine = rotation ? sine_d.data() : nullptr,
            .table_rows = kTableRows,
            .positions = positions_d};
  }
};

}  // namespace

TEMPLATE_TEST_CASE("queries and keys are normed and turned as their twins", "[quick][rope]", float, bfloat16) {
  using T = TestType;
  const Stream stream;
  for (const Shape& shape : kShapes) {
    for (const auto& [norm, rotation] : {std::pair{true, true}, {true, false}, {false, true}}) {
      const Problem<T> problem(shape, norm, rotation);
      std::vector<float> inverse(static_cast<size_t>(problem.rows())), output(problem.input.size());
      kernels::cpu::rope_norm_forward(problem.twin(), widened(problem.input).data(), inverse.data(), output.data());
      // In place, as the model does.
      kernels::cuda::rope_norm_forward<T>(problem.args(), problem.input_d, problem.inverse_d, problem.input_d, stream);
      require_near(problem.input_d.read(stream), output, kTolerance);
      if (norm) require_near(problem.inverse_d.read(stream), inverse, kTolerance);

      const auto gradient = random_values<T>(problem.rows() * shape.width, 5);
      std::vector<float> expected = widened(gradient), scale_gradient(static_cast<size_t>(shape.width), 0.5F);
      const std::vector<float> x = widened(problem.input);
      if (norm)
        kernels::cpu::rope_norm_backward_scale(problem.twin(), x.data(), inverse.data(), expected.data(),
                                               scale_gradient.data());
      kernels::cpu::rope_norm_backward_input(problem.twin(), x.data(), inverse.data(), expected.data(),
                                             expected.data());
      const DeviceArray<T> input(problem.input), gradient_d(gradient);
      const DeviceArray<float> inverse_d(inverse),
          scale_gradient_d(std::vector<float>(static_cast<size_t>(shape.width), 0.5F));
      const DeviceArray<uint8_t> workspace(kernels::cuda::rope_norm_workspace(shape.tokens, shape.heads, shape.width));
      if (norm)
        kernels::cuda::rope_norm_backward_scale<T, float>(problem.args(), input, inverse_d, gradient_d,
                                                          scale_gradient_d, workspace, stream);
      const DeviceArray<T> apart(gradient);
      kernels::cuda::rope_norm_backward_input<T>(problem.args(), input, inverse_d, gradient_d, apart, stream);
      kernels::cuda::rope_norm_backward_input<T>(problem.args(), input, inverse_d, gradient_d, gradient_d, stream);
      require_equal(apart.read(stream), widened(gradient_d.read(stream)));
      require_near(gradient_d.read(stream), expected, 2 * kTolerance);
      require_near(scale_gradient_d.read(stream), scale_gradient, 2 * kTolerance);
    }
  }
}
