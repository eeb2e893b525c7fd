#include "apps/quintet/yardsticks.h"

#include <algorithm>
#include <vector>

#include "lib/base/random.h"
#include "lib/device/cuda/cuda_device.h"

namespace quintet {

Tensor random_operand(device::Device& device, device::Arena& arena, DType dtype, Shape shape) {
  // A short pattern repeats: the host would take seconds for all of it.
  const int64_t pattern = std::min<int64_t>(shape.elements(), 1 << 16);
  std::vector<float> values;
  for (int64_t i = 0; i < pattern; ++i)
    values.push_back(static_cast<float>(philox(1, static_cast<uint64_t>(i), 0)[0]) / 4294967296.0F - 0.5F);
  const Tensor tensor = arena.allocate(dtype, shape);
  const Tensor flat = tensor.reshaped({tensor.elements()});
  device.copy(Tensor(values.data(), DType::fp32, {pattern}), flat.rows(0, pattern));
  for (int64_t done = pattern; done < flat.elements(); done *= 2) {
    const int64_t next = std::min(done, flat.elements() - done);
    device.copy(flat.rows(0, next), flat.rows(done, next));
  }
  return tensor;
}

double gpu_seconds(device::Device& device, const std::function<void()>& call) {
  call();
  const auto series = [&](int64_t calls) {
    const auto repeat = [&] {
      for (int64_t i = 0; i < calls; ++i) call();
    };
    return device::cuda_seconds(device, repeat) / static_cast<double>(calls);
  };
  const double once = series(1);
  if (once == 0) return 0;
  const auto calls = static_cast<int64_t>(std::clamp(0.02 / once, 3.0, 200.0));
  std::vector<double> seconds(5);
  for (double& value : seconds) value = series(calls);
  std::nth_element(seconds.begin(), seconds.begin() + 2, seconds.end());
  return seconds[2];
}

double best_product(device::Device& device, DType dtype, int64_t n) {
  device::MemoryLedger ledger;
  device::Arena arena(device, ledger, device::Owner::workspace);
  const auto random = [&](DType type) { return random_operand(device, arena, type, {n, n}); };
  const Tensor x = random(dtype), weight = random(dtype), y = random(dtype), gradient = random(DType::fp32);
  const double forward = gpu_seconds(device, [&] { device.linear_forward({.x = x, .weight = weight, .output = y}); });
  const double input =
      gpu_seconds(device, [&] { device.linear_backward_input({.d_output = y, .weight = weight, .d_x = x}); });
  const double weights =
      gpu_seconds(device, [&] { device.linear_backward_weight({.x = x, .d_output = y, .weight_gradient = gradient}); });
  const double fastest = std::min({forward, input, weights}), size = static_cast<double>(n);
  return fastest == 0 ? 0 : 2 * size * size * size / fastest;
}

double best_product(device::Device& device, DType dtype) {
  double best = 0;
  for (int64_t n = 256; n <= 8192; n *= 2) {
    const double rate = best_product(device, dtype, n), size = static_cast<double>(n);
    best = std::max(best, rate);
    if (rate == 0 || 2 * size * size * size / rate > 2e-3) break;
  }
  return best;
}

}  // namespace quintet
