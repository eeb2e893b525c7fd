#include "kernels/cuda/row_moves.h"

#include "kernels/cpu/row_moves.h"
#include "tests/gpu_kernels/twins.h"

using namespace quintet;
using namespace quintet::testing;

namespace {

struct Shape {
  int64_t rows, picks, width;
};
constexpr Shape kShapes[] = {{1, 1, 1}, {5, 2, 33}, {7, 3, 64}, {2, 8, 2056}};

// Every third pick is of no row, the others are all different: of rows * picks rows, in descending order.
std::vector<int32_t> picks_of(const Shape& shape) {
  std::vector<int32_t> index(static_cast<size_t>(shape.rows * shape.picks));
  for (size_t i = 0; i < index.size(); ++i) {
    index[i] = i % 3 == 1 ? kernels::cuda::kNoRow : static_cast<int32_t>(index.size() - 1 - i);
  }
  return index;
}

}  // namespace

TEMPLATE_TEST_CASE("rows are gathered by index, none as zeros", "[quick][rows]", float, bfloat16) {
  using T = TestType;
  const Stream stream;
  for (const Shape& shape : kShapes) {
    const auto index = picks_of(shape);
    const auto rows = static_cast<int64_t>(index.size());
    const auto input = random_values<T>(rows * shape.width, 1);
    std::vector<T> expected(input.size());
    kernels::cpu::gather_rows(1, rows, shape.width, input.data(), index.data(), expected.data());
    const DeviceArray<T> input_d(input), output(rows * shape.width);
    const DeviceArray<int32_t> index_d(index);
    kernels::cuda::gather_rows<T>(rows, shape.width, input_d, index_d, output, stream);
    require_equal(output.read(stream), widened(expected));
  }
}

TEMPLATE_TEST_CASE("weighted sums of rows and their gradients are their twins'", "[quick][rows]", float, bfloat16) {
  using T = TestType;
  const Stream stream;
  for (const Shape& shape : kShapes) {
    CAPTURE(shape.rows, shape.picks, shape.width);
    const auto index = picks_of(shape);
    const auto slots = static_cast<int64_t>(index.size());
    const auto input = random_values<T>(slots * shape.width, 1),
               d_output = random_values<T>(shape.rows * shape.width, 2);
    const auto weights = random_values<float>(slots, 3), addend = random_values<float>(shape.rows * shape.width, 4);
    const DeviceArray<T> input_d(input), d_output_d(d_output);
    const DeviceArray<int32_t> index_d(index);
    const DeviceArray<float> weights_d(weights), addend_d(addend);
    const kernels::cpu::CombineShape twin = {.rows = shape.rows, .picks = shape.picks, .width = shape.width};
    const kernels::cuda::CombineShape args = {.rows = shape.rows, .picks = shape.picks, .width = shape.width};
    for (const bool weighted : {false, true}) {
      for (const bool added : {false, true}) {
        std::vector<float> expected(addend.size());
        kernels::cpu::combine_rows(twin, widened(input).data(), index.data(), weighted ? weights.data() : nullptr,
                                   added ? addend.data() : nullptr, expected.data());
        const DeviceArray<T> output(shape.rows * shape.width);
        kernels::cuda::combine_rows<T>(args, input_d, index_d, weighted ? weights_d.data() : nullptr,
                                       added ? addend_d.data() : nullptr, output, stream);
        require_near(output.read(stream), expected, 1e-6);
      }
    }
    // Rows that no pick names are left alone.
    const auto before = random_values<T>(slots * shape.width, 5);
    std::vector<float> d_input = widened(before), d_weights(weights.size());
    kernels::cpu::combine_rows_backward(twin, widened(input).data(), index.data(), weights.data(),
                                        widened(d_output).data(), d_input.data(), d_weights.data());
    const DeviceArray<T> d_input_d(before);
    const DeviceArray<float> d_weights_d(slots);
    kernels::cuda::combine_rows_backward<T>(args, input_d, index_d, weights_d, d_output_d, d_input_d, d_weights_d,
                                            stream);
    require_near(d_input_d.read(stream), d_input, 1e-6);
    require_near(d_weights_d.read(stream), d_weights, 1e-4);
  }
}
