#include "kernels/cpu/embedding.h"

#include "kernels/cuda/embedding.h"
#include "tests/gpu_kernels/twins.h"

using namespace quintet;
using namespace quintet::testing;

namespace {

struct Shape {
  int64_t tokens, width, vocabulary, start, rows;  // of the table's shard
};
constexpr Shape kShapes[] = {{1, 1, 3, 0, 3}, {9, 33, 40, 16, 16}, {5, 64, 40, 32, 16}, {3, 2056, 10, 0, 10}};

std::vector<int32_t> random_indices(int64_t count, int64_t below, uint64_t seed) {
  std::vector<int32_t> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<int32_t>(philox(seed, i, 0)[0] % static_cast<uint64_t>(below));
  }
  return values;
}

struct Indices {
  std::vector<int32_t> tokens, positions;
  DeviceArray<int32_t> tokens_d, positions_d;

  explicit Indices(const Shape& shape)
      : tokens(random_indices(shape.tokens, shape.vocabulary, 1)),
        positions(random_indices(shape.tokens, 6, 2)),
        tokens_d(tokens),
        positions_d(positions) {}

  template <typename Args>
  Args args(const Shape& shape, const int32_t* at_tokens, const int32_t* at_positions) const {
    Args args;
    args.tokens_count = shape.tokens;
    args.width = shape.width;
    args.tokens = at_tokens;
    args.vocabulary_start = shape.start;
    args.table_rows = shape.rows;
    args.positions = at_positions;
    args.position_rows = 6;
    return args;
  }
};

}  // namespace

TEMPLATE_TEST_CASE("embedding reads the rows that its twin reads", "[quick][embedding]", float, bfloat16) {
  using T = TestType;
  const Stream stream;
  for (const Shape& shape : kShapes) {
    const Indices indices(shape);
    const auto table = random_values<T>(shape.rows * shape.width, 3), positions = random_values<T>(6 * shape.width, 4);
    const DeviceArray<T> table_d(table), positions_d(positions), output(shape.tokens * shape.width);
    for (const bool with_positions : {false, true}) {
      const auto twin =
          indices.args<kernels::cpu::EmbeddingArgs<float>>(shape, indices.tokens.data(), indices.positions.data());
      const auto args = indices.args<kernels::cuda::EmbeddingArgs>(shape, indices.tokens_d, indices.positions_d);
      std::vector<float> expected(static_cast<size_t>(output.size()));
      const auto wide_positions = widened(positions);
      kernels::cpu::embedding_forward(twin, widened(table).data(), with_positions ? wide_positions.data() : nullptr,
                                      expected.data());
      kernels::cuda::embedding_forward<T>(args, table_d, with_positions ? positions_d.data() : nullptr, output, stream);
      require_equal(output.read(stream), rounded<T>(expected));
    }
  }
}

TEMPLATE_TEST_CASE("embedding's gradients are its twin's, however often a token comes", "[quick][embedding]", float,
                   bfloat16) {
  using T = TestType;
  const Stream stream;
  // The last ones: more tokens than a batch holds, many of each; and all of one group.
  for (const Shape& shape :
       {kShapes[0], kShapes[1], kShapes[2], kShapes[3], Shape{4000, 8, 3, 1, 2}, Shape{1500, 3, 300, 0, 300}}) {
    Indices indices(shape);
    // Whole numbers have exact sums in any order.
    std::vector<T> d_output(static_cast<size_t>(shape.tokens * shape.width));
    for (size_t i = 0; i < d_output.size(); ++i) d_output[i] = T(static_cast<float>(philox(5, i, 0)[0] % 8));
    std::vector<float> table(static_cast<size_t>(shape.rows * shape.width), 1),
        positions(static_cast<size_t>(6 * shape.width), 2);
    const DeviceArray<T> d_output_d(d_output);
    const DeviceArray<float> table_d(table), positions_d(positions);
    const auto twin =
        indices.args<kernels::cpu::EmbeddingArgs<float>>(shape, indices.tokens.data(), indices.positions.data());
    const auto args = indices.args<kernels::cuda::EmbeddingArgs>(shape, indices.tokens_d, indices.positions_d);
    kernels::cpu::embedding_backward(twin, widened(d_output).data(), table.data(), positions.data());
    kernels::cuda::embedding_backward<T, float>(args, d_output_d, table_d, positions_d, stream);
    require_equal(table_d.read(stream), table);
    require_equal(positions_d.read(stream), positions);
  }
}
