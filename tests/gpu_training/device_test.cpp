// The CUDA device's own parts: memory, copies and casts, products with their epilogues.
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include <catch2/catch.hpp>

#include "lib/base/random.h"
#include "lib/device/cuda/cuda_device.h"
#include "lib/device/memory.h"

namespace quintet::device {
namespace {

std::vector<float> random_values(int64_t count, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(normal(seed, i, 0));
  return values;
}

// A device with memory of its own kind.
struct Machine {
  std::unique_ptr<Device> device;
  MemoryLedger ledger;
  Arena arena{*device, ledger, Owner::workspace};

  explicit Machine(std::unique_ptr<Device> made) : device(std::move(made)) {}

  Tensor put(std::vector<float> values, Shape shape) {
    const Tensor tensor = arena.allocate(DType::fp32, shape);
    device->copy(Tensor(values.data(), DType::fp32, shape), tensor);
    return tensor;
  }
  std::vector<float> read(const Tensor& tensor) {
    std::vector<float> values(static_cast<size_t>(tensor.elements()));
    device->copy(tensor, Tensor(values.data(), DType::fp32, tensor.shape()));
    return values;
  }
};

void require_near(const std::vector<float>& a, const std::vector<float>& b, double tolerance = 1e-5) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    const auto right = static_cast<double>(b[i]);
    REQUIRE(std::abs(static_cast<double>(a[i]) - right) <= tolerance * std::fmax(1, std::abs(right)));
  }
}

struct Pair {
  Machine gpu{make_cuda_device(0, 1)}, cpu{make_cpu_device(1)};
};

}  // namespace

TEST_CASE("a GPU says what it is, and one that is not there is refused", "[quick][cuda]") {
  REQUIRE(cuda_devices() == 1);
  REQUIRE(make_cuda_device(0, 3)->threads() == 3);
  REQUIRE(make_cuda_device(0, 1)->description().find("emulated GPU (sm_90") != std::string::npos);
  REQUIRE_THROWS_WITH(make_cuda_device(1, 1), "there is no GPU 1 among 1");
}

TEST_CASE("a GPU's memory is zeroed whenever it is allocated, and its own", "[quick][cuda]") {
  Machine gpu(make_cuda_device(0, 1));
  WorkQueue& queue = *gpu.device->queue();
  for (int round = 0; round < 2; ++round) {
    const Buffer buffer(*gpu.device, gpu.ledger, Owner::workspace, DType::fp32, 1000);
    REQUIRE(queue.holds(buffer.tensor().data()));
    REQUIRE(queue.holds(static_cast<float*>(buffer.tensor().data()) + 999));
    REQUIRE(gpu.read(buffer.tensor()) == std::vector<float>(1000));
    gpu.device->fill(buffer.tensor(), 3);
    REQUIRE(gpu.read(buffer.tensor()) == std::vector<float>(1000, 3));
  }
  REQUIRE_FALSE(queue.holds(&queue));
}

TEST_CASE("copies between host and GPU keep large tensors and cast between types", "[quick][cuda]") {
  Machine gpu(make_cuda_device(0, 1));
  constexpr int64_t kCount = 600001;  // several pinned buffers full
  const std::vector<float> values = random_values(kCount, 1);
  const Tensor tensor = gpu.put(values, {kCount});
  // In parentheses, or a failure would print them all.
  REQUIRE((gpu.read(tensor) == values));

  const Tensor rounded = gpu.arena.allocate(DType::bf16, {kCount}), back = gpu.arena.allocate(DType::fp32, {kCount});
  gpu.device->copy(tensor, rounded);
  gpu.device->copy(rounded, back);
  std::vector<float> expected(values.size());
  for (size_t i = 0; i < values.size(); ++i) expected[i] = static_cast<float>(bfloat16(values[i]));
  REQUIRE((gpu.read(back) == expected));
  REQUIRE((gpu.read(rounded) == expected));  // cast on its way to the host
  std::vector<double> wide(values.begin(), values.end());
  gpu.device->copy(Tensor(wide.data(), DType::fp64, {kCount}), back);
  REQUIRE((gpu.read(back) == values));
}

TEST_CASE("a GPU's linear layers are the CPU's, whatever cuBLASLt fuses", "[quick][cuda]") {
  Pair pair;
  for (const auto [rows, inputs, outputs] : {std::array<int64_t, 3>{5, 16, 24}, {7, 9, 11}, {1, 1, 8}})
    for (const Activation activation :
         {Activation::none, Activation::gelu, Activation::gelu_exact, Activation::relu_squared})
      for (const bool has_bias : {false, true}) {
        const auto run = [&, rows = rows, inputs = inputs, outputs = outputs](Machine& on) {
          const ArenaScope scope(on.arena);
          const bool plain = activation == Activation::none;
          const Tensor x = on.put(random_values(rows * inputs, 1), {rows, inputs});
          const Tensor weight = on.put(random_values(outputs * inputs, 2), {outputs, inputs});
          const Tensor bias = has_bias ? on.put(random_values(outputs, 3), {outputs}) : Tensor{};
          const Tensor d_output = on.put(random_values(rows * inputs, 4), {rows, inputs});
          const Tensor back = on.put(random_values(inputs * outputs, 5), {inputs, outputs});
          const Tensor inner = on.arena.allocate(DType::fp32, {rows, outputs});
          const Tensor output = on.arena.allocate(DType::fp32, {rows, outputs});
          on.device->linear_forward({.x = x,
                                     .weight = weight,
                                     .bias = bias,
                                     .activation = activation,
                                     .pre_activation = inner,
                                     .output = output});
          // Through a layer that follows, back to what the activation was taken of.
          const Tensor d_inner = on.put(random_values(rows * outputs, 6), {rows, outputs});
          on.device->linear_backward_input({.d_output = d_output,
                                            .weight = back,
                                            .d_x = d_inner,
                                            .accumulate = plain,
                                            .activation = activation,
                                            .pre_activation = inner});
          const Tensor weight_gradient = on.put(random_values(outputs * inputs, 7), {outputs, inputs});
          const Tensor bias_gradient = on.put(random_values(outputs, 8), {outputs});
          for (int time = 0; time < 2; ++time)
            on.device->linear_backward_weight({.x = x,
                                               .d_output = d_inner,
                                               .weight_gradient = weight_gradient,
                                               .bias_gradient = has_bias ? bias_gradient : Tensor{}});
          return std::vector<std::vector<float>>{on.read(inner), on.read(output), on.read(d_inner),
                                                 on.read(weight_gradient), on.read(bias_gradient)};
        };
        const auto got = run(pair.gpu), expected = run(pair.cpu);
        INFO(rows << " x " << inputs << " x " << outputs << ", activation " << static_cast<int>(activation));
        for (size_t i = 0; i < got.size(); ++i) require_near(got[i], expected[i], 5e-5);
      }
}

TEST_CASE("a GPU's exact sums and checks see every element", "[quick][cuda]") {
  Pair pair;
  const std::vector<float> values = random_values(40000, 1);
  const auto squares = [&](Machine& on) {
    const ArenaScope scope(on.arena);
    const Tensor tensor = on.put(values, {40000});
    ExactSum sum;
    const std::vector<Tensor> spans = {tensor.rows(0, 20000), tensor.rows(20000, 1), tensor.rows(20001, 19999)};
    on.device->squared_norm(spans, sum);
    return sum.value();
  };
  REQUIRE(squares(pair.gpu) == Approx(squares(pair.cpu)).epsilon(1e-14));

  for (const float bad : {INFINITY, NAN}) {
    std::vector<float> spoilt = values;
    REQUIRE(pair.gpu.device->all_finite(pair.gpu.put(spoilt, {40000})));
    spoilt.back() = bad;
    REQUIRE_FALSE(pair.gpu.device->all_finite(pair.gpu.put(spoilt, {40000})));
  }
}

}  // namespace quintet::device
