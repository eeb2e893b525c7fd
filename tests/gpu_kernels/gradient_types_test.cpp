// Gradients of parameters that are kept in bf16: each is the fp32 one, rounded once.
#include <array>

#include "kernels/cuda/add_norm.h"
#include "kernels/cuda/bias.h"
#include "kernels/cuda/embedding.h"
#include "kernels/cuda/rope_norm.h"
#include "tests/gpu_kernels/twins.h"

using namespace quintet;
using namespace quintet::testing;

namespace {

// What is in a gradient before, and the gradient after add(G*) has been called for both types.
template <typename Add>
void require_rounded_once(int64_t elements, const Stream& stream, Add&& add) {
  const auto before = random_values<bfloat16>(elements, 9, 4);
  const DeviceArray<bfloat16> narrow(before);
  const DeviceArray<float> wide(widened(before));
  add(narrow.data());
  add(wide.data());
  require_equal(narrow.read(stream), rounded<bfloat16>(wide.read(stream)));
}

}  // namespace

TEST_CASE("a bias's gradient in bf16 is rounded once", "[quick][bf16]") {
  const Stream stream;
  const DeviceArray<uint8_t> workspace(kernels::cuda::bias_gradient_workspace(300, 37));
  const DeviceArray<bfloat16> values(random_values<bfloat16>(300 * 37, 1));
  require_rounded_once(37, stream, [&](auto* gradient) {
    kernels::cuda::bias_gradient<bfloat16>(300, 37, values, gradient, workspace, stream);
  });
}

TEST_CASE("a norm's parameters have gradients in bf16 that are rounded once", "[quick][bf16]") {
  const Stream stream;
  constexpr int64_t kRows = 270, kWidth = 40;
  const DeviceArray<uint8_t> workspace(kernels::cuda::norm_backward_workspace(kRows, kWidth));
  const DeviceArray<bfloat16> input(random_values<bfloat16>(kRows * kWidth, 1)),
      d_output(random_values<bfloat16>(kRows * kWidth, 2)), weight(random_values<bfloat16>(kWidth, 3));
  const DeviceArray<float> mean(random_values<float>(kRows, 4)), inverse(random_values<float>(kRows, 5));
  const kernels::cuda::NormBackwardArgs<bfloat16> args = {.rows = kRows,
                                                          .width = kWidth,
                                                          .input = input,
                                                          .weight = weight,
                                                          .mean = mean,
                                                          .inverse_deviation = inverse,
                                                          .d_output = d_output};
  require_rounded_once(2 * kWidth, stream, [&](auto* gradients) {
    kernels::cuda::norm_backward_parameters(args, gradients, gradients + kWidth, workspace, stream);
  });
}

TEST_CASE("the scale of queries and keys has a gradient in bf16 that is rounded once", "[quick][bf16]") {
  const Stream stream;
  constexpr int64_t kTokens = 150, kHeads = 2, kWidth = 24, kRows = kTokens * kHeads;
  const DeviceArray<uint8_t> workspace(kernels::cuda::rope_norm_workspace(kTokens, kHeads, kWidth));
  const auto d_output = random_values<bfloat16>(kRows * kWidth, 2);
  const DeviceArray<bfloat16> input(random_values<bfloat16>(kRows * kWidth, 1)),
      scale(random_values<bfloat16>(kWidth, 3));
  const DeviceArray<float> inverse(random_values<float>(kRows, 4));
  const kernels::cuda::RopeNormArgs<bfloat16> args = {
      .tokens = kTokens, .heads = kHeads, .width = kWidth, .scale = scale, .epsilon = 1e-6};
  require_rounded_once(kWidth, stream, [&](auto* gradient) {
    const DeviceArray<bfloat16> d_ready(d_output);
    kernels::cuda::rope_norm_backward_scale<bfloat16>(args, input, inverse, d_ready, gradient, workspace, stream);
    stream.synchronise();
  });
}

// The second table: rows that come more often than a batch holds, and others of their group.
TEST_CASE("an embedding's gradients in bf16 are rounded once, however often a token comes", "[quick][bf16]") {
  const Stream stream;
  constexpr int64_t kWidth = 9;
  for (const auto& [tokens, rows, step] : {std::array<int64_t, 3>{200, 50, 1}, {4000, 700, 128}}) {
    std::vector<int32_t> indices(static_cast<size_t>(tokens));
    for (size_t t = 0; t < indices.size(); ++t) {
      indices[t] =
          static_cast<int32_t>(philox(1, t, 0)[0] % static_cast<uint64_t>(rows / step) * static_cast<uint64_t>(step));
    }
    const DeviceArray<int32_t> indices_d(indices);
    const auto d_output = random_values<bfloat16>(tokens * kWidth, 2);
    const DeviceArray<bfloat16> d_output_d(d_output);
    const kernels::cuda::EmbeddingArgs args = {
        .tokens_count = tokens, .width = kWidth, .tokens = indices_d, .table_rows = rows};
    require_rounded_once(rows * kWidth, stream, [&](auto* gradient) {
      using G = std::remove_pointer_t<decltype(gradient)>;
      kernels::cuda::embedding_backward<bfloat16, G>(args, d_output_d, gradient, nullptr, stream);
    });
    // Sums are taken in ascending order of tokens.
    std::vector<float> expected(static_cast<size_t>(rows * kWidth));
    const DeviceArray<float> gradient(expected);
    for (size_t i = 0; i < d_output.size(); ++i) {
      expected[static_cast<size_t>(indices[i / kWidth]) * kWidth + i % kWidth] += static_cast<float>(d_output[i]);
    }
    kernels::cuda::embedding_backward<bfloat16, float>(args, d_output_d, gradient, nullptr, stream);
    require_equal(gradient.read(stream), expected);
  }
}
