// Every operation over bf16 against itself in fp64 on the same values: what is stored in bf16 is the exact result
// rounded once, what is stored in fp32 is as good as fp32 makes it.
#include <catch2/catch.hpp>

#include <cmath>
#include <limits>
#include <tuple>

#include "lib/device/device.h"
#include "tests/support/arrays.h"

using namespace quintet;
using namespace quintet::device;
using namespace quintet::testing;

namespace {

using Brief = Array<bfloat16>;
using Single = Array<float>;
using Exact = Array<double>;

double value_of(bfloat16 x) { return static_cast<double>(static_cast<float>(x)); }
double value_of(float x) { return static_cast<double>(x); }

template <typename T>
Exact exact(const Array<T>& array) {
  Exact wide(array.tensor().shape());
  for (int64_t i = 0; i < array.size(); ++i) wide[i] = value_of(array[i]);
  return wide;
}

// Normal values, rounded to T.
template <typename T>
Array<T> random(Shape shape, uint64_t seed, double scale = 1) {
  const auto values = Single::random(shape, seed, scale);
  Array<T> rounded(shape);
  for (int64_t i = 0; i < values.size(); ++i) rounded[i] = T(values[i]);
  return rounded;
}

// The same values, which bf16 holds, in both types.
struct Operand {
  Brief brief;
  Exact wide;

  Operand(Shape shape, uint64_t seed, double scale = 1)
      : brief(random<bfloat16>(shape, seed, scale)), wide(exact(brief)) {}
};

// The largest distance from what was expected, in halves of a unit in bf16's last place; 1 and little more where the
// exact value was rounded once. `slack` is what fp32 may lose before, as a part of max(1, |expected|).
double halves(const Brief& result, const Exact& expected, double slack = 1e-5) {
  double worst = 0;
  for (int64_t i = 0; i < result.size(); ++i) {
    const double half = std::ldexp(1.0, std::ilogb(std::fmax(std::abs(expected[i]), 0x1p-125)) - 8);
    const double allowed = slack * std::fmax(1, std::abs(expected[i]));
    const double error = std::fmax(0, std::abs(value_of(result[i]) - expected[i]) - allowed) / half;
    if (!(error <= worst)) worst = error;
  }
  return worst;
}
constexpr double kOnce = 1 + 1e-6;

// A gradient's beginning in a type and in fp64, for operations that add to it.
template <typename G>
struct Gradient {
  Array<G> values;
  Exact expected;

  Gradient(Shape shape, uint64_t seed) : values(random<G>(shape, seed)), expected(exact(values)) {}
  bool good() const {
    if constexpr (std::is_same_v<G, float>) return difference(values, expected) < kRounding<float>;
    if constexpr (std::is_same_v<G, bfloat16>) return halves(values, expected) < kOnce;
  }
};

Array<int32_t> integers(int64_t count, int64_t modulus) {
  Array<int32_t> values({count});
  for (int64_t i = 0; i < count; ++i) values[i] = static_cast<int32_t>(i * 7 % modulus);
  return values;
}

Array<int64_t> row_keys(int64_t count) {
  Array<int64_t> keys({count});
  for (int64_t t = 0; t < count; ++t) keys[t] = 11 * t + 5;
  return keys;
}

const std::vector<std::tuple<int64_t, int64_t, int64_t>> kSizes = {
    {1, 1, 1}, {3, 5, 33}, {7, 700, 5}, {17, 33, 64}, {67, 129, 77}};
const std::vector<Activation> kActivations = {Activation::none, Activation::gelu, Activation::gelu_exact,
                                              Activation::relu_squared};

// activation(values) in fp64, through a linear layer over one input of 1.
Exact activated(Device& device, Activation activation, const Exact& values) {
  Exact one({1, 1}), pre({1, values.size()}), output(values.tensor().shape());
  one[0] = 1;
  device.linear_forward({.x = one,
                         .weight = values.tensor().reshaped({values.size(), 1}),
                         .activation = activation,
                         .pre_activation = pre,
                         .output = output.tensor().reshaped({1, values.size()})});
  return output;
}

}  // namespace

TEST_CASE("a bf16 linear layer rounds its sums once, bias included, and activates what it stored",
          "[quick][ops][bf16]") {
  const auto device = make_cpu_device(2);
  for (const auto& [rows, inputs, outputs] : kSizes) {
    const Operand x({rows, inputs}, 1), weight({outputs, inputs}, 2, 0.3), bias({outputs}, 3, 4);
    for (const Activation activation : kActivations) {
      for (const bool with_bias : {false, true}) {
        INFO(rows << " x " << outputs << " of " << inputs << ", activation " << static_cast<int>(activation));
        Brief pre({rows, outputs}), output({rows, outputs});
        Exact expected({rows, outputs});
        device->linear_forward({.x = x.brief,
                                .weight = weight.brief,
                                .bias = with_bias ? bias.brief.tensor() : Tensor(),
                                .activation = activation,
                                .pre_activation = pre,
                                .output = output});
        device->linear_forward({.x = x.wide,
                                .weight = weight.wide,
                                .bias = with_bias ? bias.wide.tensor() : Tensor(),
                                .output = expected});
        CHECK(halves(pre, expected) < kOnce);
        if (activation == Activation::none) CHECK(same_bits(pre, output));
        CHECK(halves(output, activated(*device, activation, exact(pre)), 1e-6) < kOnce);
      }
    }
  }
}

TEST_CASE("a bf16 input gradient is rounded once, behind the derivative or the addition", "[quick][ops][bf16]") {
  const auto device = make_cpu_device(2);
  const auto check = [&](int64_t rows, int64_t inputs, int64_t outputs, Activation activation, bool accumulate) {
    INFO(rows << " x " << inputs << " of " << outputs << ", activation " << static_cast<int>(activation));
    const Operand d_output({rows, outputs}, 1), weight({outputs, inputs}, 2, 0.3), pre({rows, inputs}, 3);
    const Operand d_x({rows, inputs}, 4);
    device->linear_backward_input({.d_output = d_output.brief,
                                   .weight = weight.brief,
                                   .d_x = d_x.brief,
                                   .accumulate = accumulate,
                                   .activation = activation,
                                   .pre_activation = pre.brief});
    device->linear_backward_input({.d_output = d_output.wide,
                                   .weight = weight.wide,
                                   .d_x = d_x.wide,
                                   .accumulate = accumulate,
                                   .activation = activation,
                                   .pre_activation = pre.wide});
    CHECK(halves(d_x.brief, d_x.wide) < kOnce);
  };
  for (const auto& [rows, inputs, outputs] : kSizes) {
    for (const Activation activation : kActivations) check(rows, inputs, outputs, activation, false);
    check(rows, inputs, outputs, Activation::none, true);
  }
  check(131, 16385, 3, Activation::gelu, false);  // more than one piece
}

TEMPLATE_TEST_CASE("bf16 products are added to gradients of either type", "[quick][ops][bf16]", float, bfloat16) {
  const auto device = make_cpu_device(2);
  for (const auto& [rows, inputs, outputs] : kSizes) {
    INFO(rows << " x " << inputs << " and " << outputs);
    const Operand x({rows, inputs}, 1), d_output({rows, outputs}, 2);
    const Gradient<TestType> weight({outputs, inputs}, 3), bias({outputs}, 4);
    for (int call = 0; call < (std::is_same_v<TestType, float> ? 2 : 1); ++call) {
      device->linear_backward_weight(
          {.x = x.brief, .d_output = d_output.brief, .weight_gradient = weight.values, .bias_gradient = bias.values});
      device->linear_backward_weight(
          {.x = x.wide, .d_output = d_output.wide, .weight_gradient = weight.expected, .bias_gradient = bias.expected});
      CHECK(weight.good());
      CHECK(bias.good());
    }
  }
}

TEST_CASE("gradients of fp32 and fp64 layers may be kept in bf16", "[quick][ops][bf16]") {
  const auto device = make_cpu_device(2);
  const int64_t rows = 67, inputs = 33, outputs = 129;
  const auto x = Single::random({rows, inputs}, 1), d_output = Single::random({rows, outputs}, 2);
  const Gradient<bfloat16> of_single({outputs, inputs}, 3), of_double({outputs, inputs}, 3);
  const Exact wide_x = exact(x), wide_d_output = exact(d_output);
  device->linear_backward_weight({.x = x, .d_output = d_output, .weight_gradient = of_single.values});
  device->linear_backward_weight({.x = wide_x, .d_output = wide_d_output, .weight_gradient = of_double.values});
  device->linear_backward_weight({.x = wide_x, .d_output = wide_d_output, .weight_gradient = of_double.expected});
  CHECK(of_double.good());
  CHECK(halves(of_single.values, of_double.expected) < kOnce);
}

TEMPLATE_TEST_CASE("a bf16 norm keeps fp32 statistics of the rows that it stored", "[quick][ops][bf16]", float,
                   bfloat16) {
  const auto device = make_cpu_device(2);
  for (const NormKind kind : {NormKind::layernorm, NormKind::rmsnorm}) {
    for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{1, 1}, {3, 5}, {7, 33}, {67, 1037}}) {
      INFO(rows << " x " << width << ", kind " << static_cast<int>(kind));
      const Operand residual({rows, width}, 1), branch({rows, width}, 2), weight({width}, 3), bias({width}, 4);
      const auto keys = row_keys(rows);
      const Dropout dropout = {.probability = 0.3, .seed = 1, .stream = 2, .rows = keys};
      Brief sum({rows, width}), output({rows, width});
      Single mean({rows}), inverse({rows});
      device->add_norm_forward({.kind = kind,
                                .epsilon = 1e-5,
                                .residual = residual.brief,
                                .branch = branch.brief,
                                .dropout = dropout,
                                .residual_output = sum,
                                .weight = weight.brief,
                                .bias = bias.brief,
                                .output = output,
                                .mean = mean,
                                .inverse_deviation = inverse});
      Exact expected_sum({rows, width}), expected({rows, width}), expected_mean({rows}), expected_inverse({rows});
      device->add_dropout(residual.wide, branch.wide, dropout, expected_sum);
      CHECK(halves(sum, expected_sum, 1e-6) < kOnce);
      const Exact stored = exact(sum);
      device->add_norm_forward({.kind = kind,
                                .epsilon = 1e-5,
                                .residual = stored,
                                .weight = weight.wide,
                                .bias = bias.wide,
                                .output = expected,
                                .mean = expected_mean,
                                .inverse_deviation = expected_inverse});
      CHECK(difference(mean, expected_mean) < kRounding<float>);
      for (int64_t t = 0; t < rows; ++t) CHECK(value_of(inverse[t]) == Approx(expected_inverse[t]).epsilon(1e-5));
      CHECK(halves(output, expected) < kOnce);

      const Operand d_output({rows, width}, 5), d_residual({rows, width}, 6);
      const Gradient<TestType> d_weight({width}, 7), d_bias({width}, 8);
      device->add_norm_backward_weight({.kind = kind,
                                        .input = sum,
                                        .mean = mean,
                                        .inverse_deviation = inverse,
                                        .d_output = d_output.brief,
                                        .weight_gradient = d_weight.values,
                                        .bias_gradient = d_bias.values});
      device->add_norm_backward_weight({.kind = kind,
                                        .input = stored,
                                        .mean = expected_mean,
                                        .inverse_deviation = expected_inverse,
                                        .d_output = d_output.wide,
                                        .weight_gradient = d_weight.expected,
                                        .bias_gradient = d_bias.expected});
      device->add_norm_backward_input({.kind = kind,
                                       .input = sum,
                                       .weight = weight.brief,
                                       .mean = mean,
                                       .inverse_deviation = inverse,
                                       .d_output = d_output.brief,
                                       .d_residual = d_residual.brief});
      device->add_norm_backward_input({.kind = kind,
                                       .input = stored,
                                       .weight = weight.wide,
                                       .mean = expected_mean,
                                       .inverse_deviation = expected_inverse,
                                       .d_output = d_output.wide,
                                       .d_residual = d_residual.wide});
      // One element's deviation is its rounding alone, which the inverse of epsilon's root enlarges.
      if (width > 1) CHECK(halves(d_residual.brief, d_residual.wide, 3e-5) < kOnce);
      CHECK(d_weight.good());
      CHECK(d_bias.good());
    }
  }
}

TEST_CASE("bf16 dropout drops what fp32 drops and rounds the sum once", "[quick][ops][bf16]") {
  const auto device = make_cpu_device(2);
  const int64_t rows = 13, width = 1037;
  const Operand residual({rows, width}, 1), branch({rows, width}, 2);
  const auto keys = row_keys(rows);
  for (const double probability : {0.0, 0.1, 0.9}) {
    const Dropout dropout = {.probability = probability, .seed = 7, .stream = 8, .rows = keys};
    for (const bool with_residual : {false, true}) {
      Brief output({rows, width});
      Single single_branch({rows, width}), single_residual({rows, width}), single({rows, width});
      device->copy(branch.brief, single_branch);
      device->copy(residual.brief, single_residual);
      device->add_dropout(with_residual ? residual.brief.tensor() : Tensor(), branch.brief, dropout, output);
      device->add_dropout(with_residual ? single_residual.tensor() : Tensor(), single_branch, dropout, single);
      Brief rounded({rows, width});
      device->copy(single, rounded);
      CHECK(same_bits(output, rounded));
    }
  }
}

TEST_CASE("bf16 swiglu and scaling round once", "[quick][ops][bf16]") {
  const auto device = make_cpu_device(2);
  const Shape shape = {37, 1037};
  const Operand gate(shape, 1, 3), up(shape, 2), d_output(shape, 3), d_gate(shape, 4), d_up(shape, 5), output(shape, 6);
  device->swiglu_forward({.gate = gate.brief, .up = up.brief, .output = output.brief});
  device->swiglu_forward({.gate = gate.wide, .up = up.wide, .output = output.wide});
  CHECK(halves(output.brief, output.wide, 1e-6) < kOnce);
  device->swiglu_backward(
      {.gate = gate.brief, .up = up.brief, .d_output = d_output.brief, .d_gate = d_gate.brief, .d_up = d_up.brief});
  device->swiglu_backward(
      {.gate = gate.wide, .up = up.wide, .d_output = d_output.wide, .d_gate = d_gate.wide, .d_up = d_up.wide});
  CHECK(halves(d_gate.brief, d_gate.wide, 1e-6) < kOnce);
  CHECK(halves(d_up.brief, d_up.wide, 1e-6) < kOnce);
  device->scale(gate.brief, 0.7);
  device->scale(gate.wide, 0.7);
  CHECK(halves(gate.brief, gate.wide, 1e-6) < kOnce);
}

TEMPLATE_TEST_CASE("bf16 embeddings round sums of rows once", "[quick][ops][bf16]", float, bfloat16) {
  const auto device = make_cpu_device(3);
  for (const int64_t width : {1, 33, 1037}) {
    const int64_t count = 67;
    const Operand table({20, width}, 1), position_table({40, width}, 2), output({count, width}, 3);
    const auto tokens = integers(count, 23), positions = integers(count, 40);
    EmbeddingForward forward = {.tokens = tokens,
                                .table = table.brief,
                                .vocabulary_start = 1,
                                .position_table = position_table.brief,
                                .positions = positions,
                                .output = output.brief};
    device->embedding_forward(forward);
    forward.table = table.wide, forward.position_table = position_table.wide, forward.output = output.wide;
    device->embedding_forward(forward);
    CHECK(halves(output.brief, output.wide, 1e-6) < kOnce);

    const Operand d_output({count, width}, 4);
    const Gradient<TestType> d_table({20, width}, 5), d_positions({40, width}, 6);
    EmbeddingBackward backward = {.tokens = tokens,
                                  .vocabulary_start = 1,
                                  .positions = positions,
                                  .d_output = d_output.brief,
                                  .table_gradient = d_table.values,
                                  .position_table_gradient = d_positions.values};
    device->embedding_backward(backward);
    backward.d_output = d_output.wide;
    backward.table_gradient = d_table.expected, backward.position_table_gradient = d_positions.expected;
    device->embedding_backward(backward);
    CHECK(d_table.good());
    CHECK(d_positions.good());
  }
}

TEMPLATE_TEST_CASE("bf16 heads are normalised and turned with one rounding", "[quick][ops][bf16]", float, bfloat16) {
  const auto device = make_cpu_device(2);
  struct Case {
    int64_t tokens, heads, width;
  };
  for (const Case& c : {Case{1, 1, 2}, Case{5, 3, 34}, Case{300, 16, 66}}) {  // the last in more than one piece
    for (const bool with_scale : {false, true}) {
      for (const bool turns : {false, true}) {
        INFO(c.tokens << " x " << c.heads << " x " << c.width << ", scale " << with_scale << ", rotation " << turns);
        const Shape shape = {c.tokens, c.heads, c.width}, rows = {c.tokens, c.heads};
        const Operand input(shape, 1), scale({c.width}, 2), output(shape, 3), gradient(shape, 4);
        const auto angles = Single::random({40, c.width / 2}, 5);
        Single cosine({40, c.width / 2}), sine({40, c.width / 2}), inverse(rows);
        for (int64_t i = 0; i < angles.size(); ++i) cosine[i] = std::cos(angles[i]), sine[i] = std::sin(angles[i]);
        const Exact wide_cosine = exact(cosine), wide_sine = exact(sine), wide_inverse(rows);
        const auto positions = integers(c.tokens, 40);
        const Gradient<TestType> d_scale({c.width}, 6);
        const auto maybe = [](bool wanted, const Tensor& tensor) { return wanted ? tensor : Tensor(); };
        device->rope_norm_forward({.input = input.brief,
                                   .scale = maybe(with_scale, scale.brief),
                                   .epsilon = 1e-6,
                                   .cosine = maybe(turns, cosine),
                                   .sine = maybe(turns, sine),
                                   .positions = maybe(turns, positions),
                                   .inverse_rms = maybe(with_scale, inverse),
                                   .output = output.brief});
        device->rope_norm_forward({.input = input.wide,
                                   .scale = maybe(with_scale, scale.wide),
                                   .epsilon = 1e-6,
                                   .cosine = maybe(turns, wide_cosine),
                                   .sine = maybe(turns, wide_sine),
                                   .positions = maybe(turns, positions),
                                   .inverse_rms = maybe(with_scale, wide_inverse),
                                   .output = output.wide});
        CHECK(halves(output.brief, output.wide) < kOnce);
        if (with_scale) CHECK(difference(inverse, wide_inverse) < kRounding<float>);
        if (with_scale)
          device->rope_norm_backward_weight({.input = input.brief,
                                             .cosine = maybe(turns, cosine),
                                             .sine = maybe(turns, sine),
                                             .positions = maybe(turns, positions),
                                             .inverse_rms = inverse,
                                             .d_output = gradient.brief,
                                             .scale_gradient = d_scale.values});
        device->rope_norm_backward_input({.input = maybe(with_scale, input.brief),
                                          .scale = maybe(with_scale, scale.brief),
                                          .cosine = maybe(turns, cosine),
                                          .sine = maybe(turns, sine),
                                          .positions = maybe(turns, positions),
                                          .inverse_rms = maybe(with_scale, inverse),
                                          .d_output = gradient.brief,
                                          .d_input = gradient.brief});
        if (with_scale)
          device->rope_norm_backward_weight({.input = input.wide,
                                             .cosine = maybe(turns, wide_cosine),
                                             .sine = maybe(turns, wide_sine),
                                             .positions = maybe(turns, positions),
                                             .inverse_rms = wide_inverse,
                                             .d_output = gradient.wide,
                                             .scale_gradient = d_scale.expected});
        device->rope_norm_backward_input({.input = maybe(with_scale, input.wide),
                                          .scale = maybe(with_scale, scale.wide),
                                          .cosine = maybe(turns, wide_cosine),
                                          .sine = maybe(turns, wide_sine),
                                          .positions = maybe(turns, positions),
                                          .inverse_rms = maybe(with_scale, wide_inverse),
                                          .d_output = gradient.wide,
                                          .d_input = gradient.wide});
        CHECK(halves(gradient.brief, gradient.wide) < kOnce);
        CHECK(d_scale.good());
      }
    }
  }
}

TEST_CASE("bf16 attention is fp32 attention, rounded once", "[quick][ops][bf16]") {
  const auto device = make_cpu_device(3);
  struct Case {
    int64_t batch, rows, heads, key_heads, width;
    bool documents, accumulate;
  };
  for (const Case& c : {Case{1, 1, 1, 1, 1, false, false}, Case{2, 67, 4, 2, 33, false, false},
                        Case{2, 200, 3, 3, 64, true, true}, Case{1, 131, 6, 1, 72, true, false}}) {
    INFO(c.batch << " x " << c.rows << " x " << c.heads << " x " << c.width);
    const Shape queries = {c.batch, c.rows, c.heads, c.width}, keys = {c.batch, c.rows, c.key_heads, c.width};
    const Operand query(queries, 1), key(keys, 2), value(keys, 3), output(queries, 4), d_output(queries, 5);
    const Operand d_query(queries, 6), d_key(keys, 7), d_value(keys, 8);
    const Single log_sum_exp({c.batch, c.heads, c.rows});
    const Exact wide_log_sum_exp({c.batch, c.heads, c.rows});
    Array<int32_t> starts({c.batch, c.rows});
    for (int64_t i = 0; i < starts.size(); ++i) starts[i] = static_cast<int32_t>(i % c.rows / 50 * 50);
    const Tensor document_starts = c.documents ? starts.tensor() : Tensor();
    AttentionForward forward = {.query = query.brief,
                                .key = key.brief,
                                .value = value.brief,
                                .document_starts = document_starts,
                                .output = output.brief,
                                .log_sum_exp = log_sum_exp};
    device->attention_forward(forward);
    forward.query = query.wide, forward.key = key.wide, forward.value = value.wide, forward.output = output.wide;
    forward.log_sum_exp = wide_log_sum_exp;
    device->attention_forward(forward);
    CHECK(halves(output.brief, output.wide) < kOnce);
    CHECK(difference(log_sum_exp, wide_log_sum_exp) < kRounding<float>);

    AttentionBackward backward = {.query = query.brief,
                                  .key = key.brief,
                                  .value = value.brief,
                                  .document_starts = document_starts,
                                  .output = output.brief,
                                  .log_sum_exp = log_sum_exp,
                                  .d_output = d_output.brief,
                                  .d_query = d_query.brief,
                                  .d_key = d_key.brief,
                                  .d_value = d_value.brief,
                                  .accumulate = c.accumulate};
    device->attention_backward(backward);
    const Exact stored = exact(output.brief);
    backward.query = query.wide, backward.key = key.wide, backward.value = value.wide, backward.output = stored;
    backward.log_sum_exp = wide_log_sum_exp, backward.d_output = d_output.wide;
    backward.d_query = d_query.wide, backward.d_key = d_key.wide, backward.d_value = d_value.wide;
    device->attention_backward(backward);
    CHECK(halves(d_query.brief, d_query.wide) < kOnce);
    CHECK(halves(d_key.brief, d_key.wide) < kOnce);
    CHECK(halves(d_value.brief, d_value.wide) < kOnce);
  }
}

TEST_CASE("bf16 attention leaves parts of results in fp32 unrounded", "[quick][ops][bf16][merge]") {
  const auto device = make_cpu_device(2);
  const Shape queries = {2, 67, 4, 24}, keys = {2, 67, 2, 24}, statistics = {2, 4, 67};
  const auto query = random<bfloat16>(queries, 1), key = random<bfloat16>(keys, 2), value = random<bfloat16>(keys, 3);
  const auto d_output = random<bfloat16>(queries, 4);
  const auto rounds_to = [](const Single& wide, const Brief& brief) {
    for (int64_t i = 0; i < wide.size(); ++i)
      if (bfloat16(wide[i]).bits != brief[i].bits) return false;
    return true;
  };
  const Brief output(queries);
  const Single part(queries), log_sum_exp(statistics), again(statistics);
  AttentionForward forward = {.query = query, .key = key, .value = value, .output = output, .log_sum_exp = log_sum_exp};
  device->attention_forward(forward);
  forward.output = part, forward.log_sum_exp = again;
  device->attention_forward(forward);
  CHECK(rounds_to(part, output));
  CHECK(same_bits(log_sum_exp, again));

  const Brief d_query(queries), d_key(keys), d_value(keys);
  const Single query_part(queries), key_part(keys), value_part(keys);
  AttentionBackward backward = {.query = query,
                                .key = key,
                                .value = value,
                                .output = output,
                                .log_sum_exp = log_sum_exp,
                                .d_output = d_output,
                                .d_query = d_query,
                                .d_key = d_key,
                                .d_value = d_value};
  device->attention_backward(backward);
  backward.d_query = query_part, backward.d_key = key_part, backward.d_value = value_part;
  device->attention_backward(backward);
  CHECK(rounds_to(query_part, d_query));
  CHECK(rounds_to(key_part, d_key));
  CHECK(rounds_to(value_part, d_value));

  const Single once(query_part);
  backward.accumulate = true;
  device->attention_backward(backward);
  for (int64_t i = 0; i < once.size(); ++i) REQUIRE(query_part[i] == Approx(2 * once[i]).margin(1e-6));

  // Nothing, then the part: the part. The part with itself: itself, and a factor of 2 in the sum.
  Single merged(queries);
  device->fill(merged, std::numeric_limits<double>::quiet_NaN());
  device->fill(again, -std::numeric_limits<double>::infinity());
  const AttentionMerge merge = {
      .partial_output = output, .partial_log_sum_exp = log_sum_exp, .output = merged, .log_sum_exp = again};
  device->attention_merge(merge);
  CHECK(rounds_to(merged, output));
  CHECK(same_bits(log_sum_exp, again));
  device->attention_merge(merge);
  CHECK(rounds_to(merged, output));
  CHECK(again[5] == Approx(log_sum_exp[5] + std::log(2.0)));
}

TEST_CASE("cross-entropy of bf16 logits has fp32 statistics and a gradient rounded once", "[quick][ops][bf16]") {
  const auto device = make_cpu_device(2);
  for (const int64_t columns : {5, 33, 1037}) {
    const int64_t rows = 67;
    const Operand logits({rows, columns}, 1, 3);
    auto targets = integers(rows, columns + 2);
    targets[3] = -1;
    const Single maximum({rows}), sum_exp({rows}), target_logit({rows});
    const Exact wide_maximum({rows}), wide_sum_exp({rows}), wide_target_logit({rows});
    CrossEntropyStatistics statistics = {.logits = logits.brief,
                                         .targets = targets,
                                         .vocabulary_start = 1,
                                         .valid = columns - 2,
                                         .maximum = maximum,
                                         .sum_exp = sum_exp,
                                         .target_logit = target_logit};
    ExactSum sum, wide_sum;
    device->cross_entropy_statistics(statistics);
    device->cross_entropy_sum({.targets = statistics.targets,
                               .maximum = statistics.maximum,
                               .sum_exp = statistics.sum_exp,
                               .target_logit = statistics.target_logit},
                              sum);
    statistics.logits = logits.wide;
    statistics.maximum = wide_maximum, statistics.sum_exp = wide_sum_exp, statistics.target_logit = wide_target_logit;
    device->cross_entropy_statistics(statistics);
    device->cross_entropy_sum({.targets = statistics.targets,
                               .maximum = statistics.maximum,
                               .sum_exp = statistics.sum_exp,
                               .target_logit = statistics.target_logit},
                              wide_sum);
    CHECK(difference(maximum, wide_maximum) == 0);
    CHECK(difference(target_logit, wide_target_logit) == 0);
    CHECK(difference(sum_exp, wide_sum_exp) < kRounding<float>);
    CHECK(sum.value() == Approx(wide_sum.value()).epsilon(1e-6));

    CrossEntropyGradient gradient = {.logits = logits.brief,
                                     .targets = targets,
                                     .vocabulary_start = 1,
                                     .valid = columns - 2,
                                     .maximum = maximum,
                                     .sum_exp = sum_exp,
                                     .scale = 0.37};
    device->cross_entropy_gradient(gradient);
    gradient.logits = logits.wide, gradient.maximum = wide_maximum, gradient.sum_exp = wide_sum_exp;
    device->cross_entropy_gradient(gradient);
    CHECK(halves(logits.brief, logits.wide, 1e-6) < kOnce);
  }
}

TEMPLATE_TEST_CASE("adamw updates the master as if it were the weight, which becomes its rounding",
                   "[quick][ops][bf16][adamw]", float, bfloat16) {
  const auto device = make_cpu_device(2);
  const AdamwStep step = {.learning_rate = 1e-3,
                          .beta1 = 0.9,
                          .beta2 = 0.95,
                          .epsilon = 1e-8,
                          .weight_decay = 0.1,
                          .gradient_scale = 0.3,
                          .update = 2};
  for (const int64_t count : {1, 7, 40001}) {
    const auto gradient = random<TestType>({count}, 1);
    const auto master = Single::random({count}, 2), first = Single::random({count}, 3);
    auto second = Single::random({count}, 4);
    for (float& v : second.span()) v *= v;
    const Single weight = master, single_first = first, single_second = second, single_gradient({count});
    const Brief rounded({count});
    device->copy(gradient, single_gradient);
    const std::vector<AdamwSpan> spans = {{.weight = rounded,
                                           .gradient = gradient,
                                           .first_moment = first,
                                           .second_moment = second,
                                           .master = master,
                                           .decay = true},
                                          {.weight = weight,
                                           .gradient = single_gradient,
                                           .first_moment = single_first,
                                           .second_moment = single_second,
                                           .decay = true}};
    device->adamw(spans, step);
    CHECK(same_bits(master, weight));
    CHECK(same_bits(first, single_first));
    CHECK(same_bits(second, single_second));
    for (int64_t i = 0; i < count; ++i) REQUIRE(rounded[i].bits == bfloat16(master[i]).bits);
    const AdamwSpan without = {.weight = rounded, .gradient = gradient, .first_moment = first, .second_moment = second};
    CHECK_THROWS_AS(device->adamw(std::span(&without, 1), step), CheckFailure);
  }
}

TEST_CASE("norms and finiteness of bf16 are exact", "[quick][ops][bf16]") {
  const auto device = make_cpu_device(3);
  for (const int64_t count : {1, 1025, 100001}) {
    auto values = random<bfloat16>({count}, 1, 1e-3);
    ExactSum expected, sum;
    for (const bfloat16 x : values.span()) expected.add(value_of(x) * value_of(x));
    const Tensor tensor = values;
    device->squared_norm(std::span(&tensor, 1), sum);
    CHECK(sum.value() == expected.value());
    CHECK(device->all_finite(values));
    for (const int64_t place : {int64_t{0}, count / 2, count - 1}) {
      for (const uint16_t bad : {uint16_t{0x7f80}, uint16_t{0xff80}, uint16_t{0x7fc0}}) {  // infinities and a NaN
        const bfloat16 before = values[place];
        values[place].bits = bad;
        CHECK(!device->all_finite(values));
        values[place] = before;
      }
    }
  }
}
