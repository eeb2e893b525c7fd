// No operation's bits depend on where its operands lie, and none but products on the number of threads.
#include <catch2/catch.hpp>

#include <functional>

#include "lib/device/device.h"
#include "tests/support/arrays.h"

using namespace quintet;
using namespace quintet::device;
using namespace quintet::testing;

namespace {

// The bytes of what one operation wrote; its operands all lie `offset` elements behind a 64-byte boundary.
using Results = std::vector<std::vector<std::byte>>;
using Operation = std::function<Results(Device&, int64_t offset)>;

template <typename... T>
Results bytes_of(const Array<T>&... arrays) {
  const auto bytes = [](std::span<const std::byte> all) { return std::vector<std::byte>(all.begin(), all.end()); };
  return {bytes(std::as_bytes(arrays.span()))...};
}

constexpr int64_t kRows = 67, kWidth = 1037;

template <typename T>
struct Operands {
  int64_t offset;
  uint64_t seed = 0;
  // Weights and activations.
  Array<T> random(Shape shape) {
    const auto values = sums(shape);
    Array<T> array(shape, offset);
    for (int64_t i = 0; i < values.size(); ++i) array[i] = T(values[i]);
    return array;
  }
  Array<T> matrix() { return random({kRows, kWidth}); }
  // Statistics and gradients of parameters.
  Array<float> sums(Shape shape) { return Array<float>::random(shape, ++seed, 1, offset); }
};

Array<int32_t> integers(int64_t count, int64_t modulus, int64_t offset) {
  Array<int32_t> values({count}, offset);
  for (int64_t i = 0; i < count; ++i) values[i] = static_cast<int32_t>(i * 7 % modulus);
  return values;
}

Array<int64_t> row_keys(int64_t offset) {
  Array<int64_t> keys({kRows}, offset);
  for (int64_t t = 0; t < kRows; ++t) keys[t] = 11 * t + 5;
  return keys;
}

template <typename T>
Results norm(Device& device, int64_t offset, NormKind kind) {
  Operands<T> make{offset};
  const auto residual = make.matrix(), branch = make.matrix(), weight = make.random({kWidth}),
             bias = make.random({kWidth});
  const auto sum = make.matrix(), output = make.matrix();
  const auto mean = make.sums({kRows}), inverse = make.sums({kRows});
  const auto d_output = make.matrix(), d_residual = make.matrix();
  const auto d_weight = make.sums({kWidth}), d_bias = make.sums({kWidth});
  const auto keys = row_keys(offset);
  device.add_norm_forward({.kind = kind,
                           .epsilon = 1e-5,
                           .residual = residual,
                           .branch = branch,
                           .dropout = {.probability = 0.1, .seed = 1, .stream = 2, .rows = keys},
                           .residual_output = sum,
                           .weight = weight,
                           .bias = bias,
                           .output = output,
                           .mean = mean,
                           .inverse_deviation = inverse});
  device.add_norm_backward_weight({.kind = kind,
                                   .input = sum,
                                   .mean = mean,
                                   .inverse_deviation = inverse,
                                   .d_output = d_output,
                                   .weight_gradient = d_weight,
                                   .bias_gradient = d_bias});
  device.add_norm_backward_input({.kind = kind,
                                  .input = sum,
                                  .weight = weight,
                                  .mean = mean,
                                  .inverse_deviation = inverse,
                                  .d_output = d_output,
                                  .d_residual = d_residual});
  return bytes_of(sum, output, mean, inverse, d_residual, d_weight, d_bias);
}

template <typename T>
Results linear(Device& device, int64_t offset, Activation activation) {
  Operands<T> make{offset};
  constexpr int64_t kOutputs = 131;
  const auto x = make.matrix(), weight = make.random({kOutputs, kWidth}), bias = make.random({kOutputs});
  const auto pre = make.random({kRows, kOutputs}), output = make.random({kRows, kOutputs});
  const auto d_output = make.random({kRows, kOutputs}), d_x = make.matrix(), x_pre = make.matrix();
  const auto d_weight = make.sums({kOutputs, kWidth}), d_bias = make.sums({kOutputs});
  device.linear_forward(
      {.x = x, .weight = weight, .bias = bias, .activation = activation, .pre_activation = pre, .output = output});
  device.linear_backward_input({.d_output = d_output,
                                .weight = weight,
                                .d_x = d_x,
                                .accumulate = false,
                                .activation = activation,
                                .pre_activation = x_pre});
  device.linear_backward_weight({.x = x, .d_output = d_output, .weight_gradient = d_weight, .bias_gradient = d_bias});
  return bytes_of(pre, output, d_x, d_weight, d_bias);
}

template <typename T>
Results swiglu(Device& device, int64_t offset) {
  Operands<T> make{offset};
  const auto gate = make.matrix(), up = make.matrix(), output = make.matrix(), d_output = make.matrix(),
             d_gate = make.matrix(), d_up = make.matrix();
  device.swiglu_forward({.gate = gate, .up = up, .output = output});
  device.swiglu_backward({.gate = gate, .up = up, .d_output = d_output, .d_gate = d_gate, .d_up = d_up});
  return bytes_of(output, d_gate, d_up);
}

template <typename T>
Results rope_norm(Device& device, int64_t offset) {
  Operands<T> make{offset};
  constexpr int64_t kHeads = 17, kHeadWidth = 66;
  const auto input = make.random({kRows, kHeads, kHeadWidth}), scale = make.random({kHeadWidth});
  const auto cosine = make.sums({kRows, kHeadWidth / 2}), sine = make.sums({kRows, kHeadWidth / 2});
  const auto inverse = make.sums({kRows, kHeads});
  const auto output = make.random({kRows, kHeads, kHeadWidth});
  const auto gradient = make.random({kRows, kHeads, kHeadWidth});
  const auto d_scale = make.sums({kHeadWidth});
  const auto positions = integers(kRows, kRows, offset);
  device.rope_norm_forward({.input = input,
                            .scale = scale,
                            .epsilon = 1e-6,
                            .cosine = cosine,
                            .sine = sine,
                            .positions = positions,
                            .inverse_rms = inverse,
                            .output = output});
  device.rope_norm_backward_weight({.input = input,
                                    .cosine = cosine,
                                    .sine = sine,
                                    .positions = positions,
                                    .inverse_rms = inverse,
                                    .d_output = gradient,
                                    .scale_gradient = d_scale});
  device.rope_norm_backward_input({.input = input,
                                   .scale = scale,
                                   .cosine = cosine,
                                   .sine = sine,
                                   .positions = positions,
                                   .inverse_rms = inverse,
                                   .d_output = gradient,
                                   .d_input = gradient});
  return bytes_of(output, inverse, gradient, d_scale);
}

template <typename T>
Results cross_entropy(Device& device, int64_t offset) {
  Operands<T> make{offset};
  const auto logits = make.matrix();
  const auto maximum = make.sums({kRows}), sum_exp = make.sums({kRows}), target_logit = make.sums({kRows});
  const auto targets = integers(kRows, kWidth, offset);
  device.cross_entropy_statistics({.logits = logits,
                                   .targets = targets,
                                   .vocabulary_start = 0,
                                   .valid = kWidth - 3,
                                   .maximum = maximum,
                                   .sum_exp = sum_exp,
                                   .target_logit = target_logit});
  device.cross_entropy_gradient({.logits = logits,
                                 .targets = targets,
                                 .vocabulary_start = 0,
                                 .valid = kWidth - 3,
                                 .maximum = maximum,
                                 .sum_exp = sum_exp,
                                 .scale = 0.01});
  return bytes_of(logits, maximum, sum_exp, target_logit);
}

template <typename T>
Results embedding(Device& device, int64_t offset) {
  Operands<T> make{offset};
  const auto table = make.random({20, kWidth}), position_table = make.random({kRows, kWidth}), output = make.matrix();
  const auto d_output = make.matrix();
  const auto d_table = make.sums({20, kWidth}), d_positions = make.sums({kRows, kWidth});
  const auto tokens = integers(kRows, 23, offset), positions = integers(kRows, 40, offset);
  device.embedding_forward({.tokens = tokens,
                            .table = table,
                            .vocabulary_start = 1,
                            .position_table = position_table,
                            .positions = positions,
                            .output = output});
  device.embedding_backward({.tokens = tokens,
                             .vocabulary_start = 1,
                             .positions = positions,
                             .d_output = d_output,
                             .table_gradient = d_table,
                             .position_table_gradient = d_positions});
  return bytes_of(output, d_table, d_positions);
}

template <typename T>
Results adamw(Device& device, int64_t offset) {
  Operands<T> make{offset};
  const auto weight = make.matrix(), gradient = make.matrix();
  const auto master = make.sums({kRows, kWidth}), first = make.sums({kRows, kWidth});
  auto second = make.sums({kRows, kWidth});
  for (float& v : second.span()) v *= v;
  const AdamwSpan span = {.weight = weight,
                          .gradient = gradient,
                          .first_moment = first,
                          .second_moment = second,
                          .master = std::is_same_v<T, bfloat16> ? master.tensor() : Tensor(),
                          .decay = true};
  device.adamw(std::span(&span, 1), {.learning_rate = 1e-3,
                                     .beta1 = 0.9,
                                     .beta2 = 0.95,
                                     .epsilon = 1e-8,
                                     .weight_decay = 0.1,
                                     .gradient_scale = 0.3,
                                     .update = 2});
  device.scale(gradient, 0.7);
  return bytes_of(weight, gradient, master, first, second);
}

using NamedOperation = std::pair<const char*, Operation>;

template <typename T>
const std::vector<NamedOperation>& products() {
  static const std::vector<NamedOperation> operations = {
      {"gelu", [](Device& d, int64_t o) { return linear<T>(d, o, Activation::gelu); }},
      {"gelu_exact", [](Device& d, int64_t o) { return linear<T>(d, o, Activation::gelu_exact); }},
      {"relu_squared", [](Device& d, int64_t o) { return linear<T>(d, o, Activation::relu_squared); }},
      {"linear", [](Device& d, int64_t o) { return linear<T>(d, o, Activation::none); }},
  };
  return operations;
}

template <typename T>
const std::vector<NamedOperation>& others() {
  static const std::vector<NamedOperation> operations = {
      {"layernorm", [](Device& d, int64_t o) { return norm<T>(d, o, NormKind::layernorm); }},
      {"rmsnorm", [](Device& d, int64_t o) { return norm<T>(d, o, NormKind::rmsnorm); }},
      {"swiglu", swiglu<T>},
      {"rope_norm", rope_norm<T>},
      {"cross_entropy", cross_entropy<T>},
      {"embedding", embedding<T>},
      {"adamw", adamw<T>},
  };
  return operations;
}

void require_same(const std::vector<NamedOperation>& operations, Device& device, int64_t offset, Device& reference) {
  for (const auto& [name, operation] : operations) {
    const Results expected = operation(reference, 0), results = operation(device, offset);
    for (size_t i = 0; i < expected.size(); ++i) {
      INFO(name << ", result " << i << ", " << offset << " elements off a boundary");
      CHECK(results[i] == expected[i]);
    }
  }
}

}  // namespace

TEMPLATE_TEST_CASE("alignment changes no bit of any operation", "[quick][ops][determinism]", float, bfloat16) {
  for (const int threads : {1, 3}) {
    const auto device = make_cpu_device(threads);
    for (const int64_t offset : {1, 5}) {
      require_same(products<TestType>(), *device, offset, *device);
      require_same(others<TestType>(), *device, offset, *device);
    }
  }
}

TEMPLATE_TEST_CASE("threads change no bit of operations that are our own", "[quick][ops][determinism]", float,
                   bfloat16) {
  const auto one = make_cpu_device(1), three = make_cpu_device(3);
  require_same(others<TestType>(), *three, 0, *one);
}
