#include "kernels/cuda/dropout.h"

#include "kernels/cpu/dropout.h"
#include "tests/gpu_kernels/twins.h"

using namespace quintet;
using namespace quintet::testing;

TEMPLATE_TEST_CASE("dropout keeps and scales what its twin does", "[quick][dropout]", float, bfloat16) {
  using T = TestType;
  const Stream stream;
  const std::vector<int64_t> keys = {0, 1, 12345678901234, 7};
  const DeviceArray<int64_t> keys_on_device(keys);
  for (const int64_t width : {1, 5, 33, 64, 1000, 1002}) {
    const auto branch = random_values<T>(4 * width, 1), residual = random_values<T>(4 * width, 2);
    const DeviceArray<T> branch_on_device(branch), residual_on_device(residual), output(4 * width);
    for (const double probability : {0.0, 0.1, 0.9}) {
      std::vector<float> expected(branch.size());
      const kernels::cpu::DropoutMask on_cpu = {probability, 99, 1234567890123456789, keys.data()};
      const kernels::cuda::DropoutMask on_device = {probability, 99, 1234567890123456789, keys_on_device};
      kernels::cpu::add_dropout(1, on_cpu, 4, width, widened(residual).data(), widened(branch).data(), expected.data());
      kernels::cuda::add_dropout<T>(on_device, 4, width, residual_on_device, branch_on_device, output, stream);
      require_equal(output.read(stream), rounded<T>(expected));
      kernels::cpu::add_dropout<float>(1, on_cpu, 4, width, nullptr, widened(branch).data(), expected.data());
      kernels::cuda::add_dropout<T>(on_device, 4, width, nullptr, branch_on_device, output, stream);
      require_equal(output.read(stream), rounded<T>(expected));
    }
  }
}

TEMPLATE_TEST_CASE("operands off a 16-byte boundary are read element by element", "[quick][dropout]", float, bfloat16) {
  using T = TestType;
  const Stream stream;
  const int64_t width = 64;
  const auto branch = random_values<T>(2 * width, 1), residual = random_values<T>(2 * width, 2);
  std::vector<float> expected(branch.size());
  kernels::cpu::add_dropout(1, {}, 2, width, widened(residual).data(), widened(branch).data(), expected.data());
  for (const int64_t off : {0, 1, 2, 3}) {
    const DeviceArray<T> branch_d(branch, off == 3 ? 1 : 0), residual_d(residual, off == 1 ? 1 : 0),
        output(2 * width, off == 2 ? 1 : 0);
    kernels::cuda::add_dropout<T>({}, 2, width, residual_d, branch_d, output, stream);
    require_equal(output.read(stream), rounded<T>(expected));
  }
}
