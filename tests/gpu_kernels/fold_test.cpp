#include "kernels/cuda/fold.h"

#include <memory>

#include "tests/gpu_kernels/twins.h"

using namespace quintet;
using namespace quintet::testing;

TEMPLATE_TEST_CASE("buffers of one device add in the order of their list and round once", "[quick][fold]", float,
                   bfloat16) {
  using T = TestType;
  const Stream stream;
  for (const int64_t elements : {1, 7, 64, 3001}) {
    for (const size_t members : {1, 2, 9}) {
      std::vector<std::unique_ptr<DeviceArray<T>>> buffers;
      std::vector<const T*> inputs;
      std::vector<float> expected;
      for (size_t member = 0; member < members; ++member) {
        const auto values = random_values<T>(elements, member + 1, 100);
        buffers.push_back(std::make_unique<DeviceArray<T>>(values));
        inputs.push_back(buffers.back()->data());
        if (member == 0) {
          expected = widened(values);
        } else {
          for (size_t i = 0; i < expected.size(); ++i) expected[i] += static_cast<float>(values[i]);
        }
      }
      // Into the last input, as an owner of the sum does.
      kernels::cuda::fold<T>(elements, inputs, *buffers.back(), stream);
      require_equal(buffers.back()->read(stream), rounded<T>(expected));
    }
  }
}
