#include "kernels/cuda/attention.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>

#include "kernels/cpu/attention.h"
#include "tests/gpu_kernels/twins.h"

using namespace quintet;
using namespace quintet::testing;
using kernels::cuda::AttentionShape;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Operands on the host. Rows are `gap` elements longer than their heads need.
template <typename T>
struct Case {
  AttentionShape shape;
  int64_t gap = 0;
  std::vector<int32_t> starts;
  std::vector<T> query, key, value, d_output;
  bool accumulate = false;

  int64_t row(int64_t heads) const { return heads * shape.head_dim + gap; }
  int64_t elements(int64_t rows, int64_t heads) const { return shape.batch * rows * row(heads); }
  int64_t query_elements() const { return elements(shape.query_rows, shape.heads); }
  int64_t key_elements() const { return elements(shape.key_rows, shape.key_heads); }
};

template <typename T>
Case<T> random_case(const AttentionShape& shape, double scale = 1) {
  Case<T> c;
  c.shape = shape;
  c.gap = 8;
  c.query = random_values<T>(c.query_elements(), 1, scale);
  c.key = random_values<T>(c.key_elements(), 2, scale);
  c.value = random_values<T>(c.key_elements(), 3);
  c.d_output = random_values<T>(c.query_elements(), 4);
  return c;
}

template <template <typename> typename Heads, typename T>
Heads<T> heads_of(T* data, int64_t rows, int64_t row, int64_t head_dim) {
  return {data, rows * row, row, head_dim};
}

template <typename R>
struct Results {
  std::vector<R> output, log_sum_exp, d_query, d_key, d_value;
};

template <typename To, typename From>
To shape_of(const From& from) {
  To to;
  to.batch = from.batch, to.heads = from.heads, to.key_heads = from.key_heads;
  to.query_rows = from.query_rows, to.key_rows = from.key_rows, to.head_dim = from.head_dim;
  to.first_query = from.first_query, to.first_key = from.first_key;
  return to;
}

template <typename To, typename From>
std::vector<To> cast(const std::vector<From>& from) {
  std::vector<To> to(from.size());
  std::transform(from.begin(), from.end(), to.begin(),
                 [](From value) { return static_cast<To>(static_cast<float>(value)); });
  return to;
}

// What gradients hold before a backward that accumulates.
template <typename T>
std::vector<T> held_before(int64_t count) {
  return random_values<T>(count, 9);
}

// The twin, in R.
template <typename R, typename T>
Results<R> on_cpu(const Case<T>& c) {
  using kernels::cpu::HeadTensor;
  const auto query = cast<R>(c.query), key = cast<R>(c.key), value = cast<R>(c.value), d_output = cast<R>(c.d_output);
  Results<R> r;
  r.output.resize(query.size());
  r.log_sum_exp.resize(static_cast<size_t>(c.shape.batch * c.shape.heads * c.shape.query_rows));
  r.d_query = cast<R>(held_before<T>(c.query_elements()));
  r.d_key = r.d_value = cast<R>(held_before<T>(c.key_elements()));
  const auto of_query = [&](auto* data) {
    return heads_of<HeadTensor>(data, c.shape.query_rows, c.row(c.shape.heads), c.shape.head_dim);
  };
  const auto of_key = [&](auto* data) {
    return heads_of<HeadTensor>(data, c.shape.key_rows, c.row(c.shape.key_heads), c.shape.head_dim);
  };
  kernels::cpu::AttentionForwardArgs<R> forward;
  forward.shape = shape_of<kernels::cpu::AttentionShape>(c.shape);
  forward.shape.document_starts = c.starts.empty() ? nullptr : c.starts.data();
  forward.query = of_query(query.data());
  forward.key = of_key(key.data());
  forward.value = of_key(value.data());
  forward.output = of_query(r.output.data());
  forward.log_sum_exp = r.log_sum_exp.data();
  kernels::cpu::attention_forward(forward);
  kernels::cpu::AttentionBackwardArgs<R> backward;
  backward.shape = forward.shape;
  backward.query = forward.query;
  backward.key = forward.key;
  backward.value = forward.value;
  backward.output = of_query(std::as_const(r.output).data());
  backward.d_output = of_query(d_output.data());
  backward.log_sum_exp = r.log_sum_exp.data();
  backward.d_query = of_query(r.d_query.data());
  backward.d_key = of_key(r.d_key.data());
  backward.d_value = of_key(r.d_value.data());
  backward.accumulate = c.accumulate;
  kernels::cpu::attention_backward(backward);
  return r;
}

template <typename T>
struct DeviceResults {
  Results<T> values;
  std::vector<float> log_sum_exp;
};

// Results in R.
template <typename T, typename R = T>
DeviceResults<R> on_device(const Case<T>& c) {
  using kernels::cuda::HeadTensor;
  const Stream stream;
  const DeviceArray<T> query(c.query), key(c.key), value(c.value), d_output(c.d_output);
  const DeviceArray<T> output(std::vector<T>(c.query.size()));
  const DeviceArray<R> result(std::vector<R>(c.query.size())), d_query(held_before<R>(c.query_elements())),
      d_key(held_before<R>(c.key_elements())), d_value(held_before<R>(c.key_elements()));
  const DeviceArray<float> log_sum_exp(c.shape.batch * c.shape.heads * c.shape.query_rows);
  std::optional<DeviceArray<int32_t>> starts;
  if (!c.starts.empty()) starts.emplace(c.starts);
  const auto of_query = [&]<typename E>(E* data) {
    return heads_of<HeadTensor, E>(data, c.shape.query_rows, c.row(c.shape.heads), c.shape.head_dim);
  };
  const auto of_key = [&]<typename E>(E* data) {
    return heads_of<HeadTensor, E>(data, c.shape.key_rows, c.row(c.shape.key_heads), c.shape.head_dim);
  };
  kernels::cuda::AttentionForwardArgs<T> forward;
  forward.shape = c.shape;
  forward.shape.document_starts = starts ? starts->data() : nullptr;
  forward.query = of_query(static_cast<const T*>(query));
  forward.key = of_key(static_cast<const T*>(key));
  forward.value = of_key(static_cast<const T*>(value));
  forward.output = of_query(output.data());
  forward.log_sum_exp = log_sum_exp;
  kernels::cuda::attention_forward(forward, stream);
  kernels::cuda::AttentionForwardArgs<T, R> again;
  again.shape = forward.shape;
  again.query = forward.query;
  again.key = forward.key;
  again.value = forward.value;
  again.output = of_query(result.data());
  again.log_sum_exp = log_sum_exp;
  kernels::cuda::attention_forward(again, stream);
  const DeviceArray<uint8_t> workspace(kernels::cuda::attention_backward_workspace<T>(c.shape));
  kernels::cuda::AttentionBackwardArgs<T, R> backward;
  backward.shape = forward.shape;
  backward.query = forward.query;
  backward.key = forward.key;
  backward.value = forward.value;
  backward.output = of_query(static_cast<const T*>(output));
  backward.d_output = of_query(static_cast<const T*>(d_output));
  backward.log_sum_exp = log_sum_exp;
  backward.d_query = of_query(d_query.data());
  backward.d_key = of_key(d_key.data());
  backward.d_value = of_key(d_value.data());
  backward.accumulate = c.accumulate;
  backward.workspace = workspace;
  kernels::cuda::attention_backward(backward, stream);
  return {{result.read(stream), {}, d_query.read(stream), d_key.read(stream), d_value.read(stream)},
          log_sum_exp.read(stream)};
}

bool sees(const Case<bfloat16>& c, int64_t b, int64_t q, int64_t k) {
  const int64_t position = c.shape.first_key + k;
  const bool same = c.starts.empty() || position >= c.starts[static_cast<size_t>(b * c.shape.query_rows + q)];
  return position <= c.shape.first_query + q && same;
}

// The formula by plain means in bf16: every product has fp32 sums, every matrix between products is rounded, as a
// framework without fused attention computes it.
Results<double> plainly(const Case<bfloat16>& c) {
  const AttentionShape& s = c.shape;
  const auto query = widened(c.query), key = widened(c.key), value = widened(c.value), d_output = widened(c.d_output);
  std::vector<float> output(query.size()), d_query(query.size()), d_key(key.size()), d_value(key.size());
  const auto round = [](float x) { return static_cast<float>(bfloat16(x)); };
  const float scale = 1 / std::sqrt(static_cast<float>(s.head_dim));
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t head = 0; head < s.heads; ++head) {
      const auto at_q = [&](int64_t q) {
        return static_cast<size_t>((b * s.query_rows + q) * c.row(s.heads) + head * s.head_dim);
      };
      const auto at_k = [&](int64_t k) {
        return static_cast<size_t>((b * s.key_rows + k) * c.row(s.key_heads) +
                                   head * s.key_heads / s.heads * s.head_dim);
      };
      const auto dot = [&](const std::vector<float>& x, size_t i, const std::vector<float>& y, size_t j) {
        float sum = 0;
        for (size_t d = 0; d < static_cast<size_t>(s.head_dim); ++d) sum += x[i + d] * y[j + d];
        return sum;
      };
      for (int64_t q = 0; q < s.query_rows; ++q) {
        std::vector<float> weights(static_cast<size_t>(s.key_rows), -kInfinity);
        float most = -kInfinity, total = 0, delta = 0;
        for (int64_t k = 0; k < s.key_rows; ++k) {
          float& score = weights[static_cast<size_t>(k)];
          if (sees(c, b, q, k)) score = round(dot(query, at_q(q), key, at_k(k))) * scale;
          most = std::max(most, score);
        }
        if (most == -kInfinity) continue;
        for (float& score : weights) total += score = std::exp(score - most);
        for (float& score : weights) score = round(score / total);
        for (int64_t k = 0; k < s.key_rows; ++k) {
          const float p = weights[static_cast<size_t>(k)];
          for (size_t d = 0; d < static_cast<size_t>(s.head_dim); ++d) {
            output[at_q(q) + d] += p * value[at_k(k) + d];
            d_value[at_k(k) + d] += p * d_output[at_q(q) + d];
          }
          delta += p * round(dot(d_output, at_q(q), value, at_k(k)));
        }
        for (int64_t k = 0; k < s.key_rows; ++k) {
          const float p = weights[static_cast<size_t>(k)];
          const float ds = round(p * (round(dot(d_output, at_q(q), value, at_k(k))) - delta) * scale);
          for (size_t d = 0; d < static_cast<size_t>(s.head_dim); ++d) {
            d_query[at_q(q) + d] += ds * key[at_k(k) + d];
            d_key[at_k(k) + d] += ds * query[at_q(q) + d];
          }
        }
      }
    }
  }
  const auto finish = [&](const std::vector<float>& values) { return cast<double>(rounded<bfloat16>(values)); };
  return {finish(output), {}, finish(d_query), finish(d_key), finish(d_value)};
}

// The largest and the root-mean-square error over the elements of heads; gaps between rows are equal anyway.
struct Error {
  double most = 0, mean = 0;
};
template <typename T>
Error error_of(const std::vector<T>& got, const std::vector<double>& exact) {
  REQUIRE(got.size() == exact.size());
  Error error;
  for (size_t i = 0; i < got.size(); ++i) {
    const double e = std::abs(static_cast<double>(static_cast<float>(got[i])) - exact[i]);
    if (!(e <= error.most)) error.most = e;  // NaN stays
    error.mean += e * e;
  }
  error.mean = std::sqrt(error.mean / static_cast<double>(got.size()));
  return error;
}

// Flash-attention's rule: at most twice the error of plain means, both against fp64.
void require_as_good(const char* name, const std::vector<bfloat16>& got, const std::vector<double>& plain,
                     const std::vector<double>& exact) {
  const Error mine = error_of(got, exact), theirs = error_of(plain, exact);
  INFO(name << ": largest error " << mine.most << " where plain means have " << theirs.most << ", mean " << mine.mean
            << " and " << theirs.mean);
  CHECK(mine.most <= 2 * theirs.most + 1e-5);
  CHECK(mine.mean <= 1.2 * theirs.mean + 1e-6);
}

void require_log_sum_exp(const std::vector<float>& got, const std::vector<double>& exact) {
  REQUIRE(got.size() == exact.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isinf(exact[i])) {
      REQUIRE(got[i] == -kInfinity);
    } else {
      REQUIRE(std::abs(static_cast<double>(got[i]) - exact[i]) <= 2e-5 * std::max(1.0, std::abs(exact[i])));
    }
  }
}

// Gradients' gaps hold what was there, those of `plainly` zero.
template <typename T>
void clear_gaps(const Case<T>& c, int64_t heads, std::vector<double>& values) {
  const auto row = static_cast<size_t>(c.row(heads)), width = static_cast<size_t>(heads * c.shape.head_dim);
  for (size_t i = 0; i < values.size(); ++i) {
    if (i % row >= width) values[i] = 0;
  }
}

void require_good(const Case<bfloat16>& c) {
  const Results<double> exact = on_cpu<double>(c);
  const Results<double> plain = plainly(c);
  const DeviceResults<bfloat16> got = on_device(c);
  require_log_sum_exp(got.log_sum_exp, exact.log_sum_exp);
  require_as_good("output", got.values.output, plain.output, exact.output);
  const auto gradient = [&](const char* name, int64_t heads, const std::vector<bfloat16>& values,
                            const std::vector<double>& plain_values, std::vector<double> exact_values) {
    auto inside = cast<double>(values);
    clear_gaps(c, heads, inside);
    clear_gaps(c, heads, exact_values);
    require_as_good(name, cast<bfloat16>(inside), plain_values, exact_values);
  };
  gradient("d_query", c.shape.heads, got.values.d_query, plain.d_query, exact.d_query);
  gradient("d_key", c.shape.key_heads, got.values.d_key, plain.d_key, exact.d_key);
  gradient("d_value", c.shape.key_heads, got.values.d_value, plain.d_value, exact.d_value);
}

void require_good(const Case<float>& c) {
  const Results<float> expected = on_cpu<float>(c);
  const DeviceResults<float> got = on_device(c);
  require_log_sum_exp(got.log_sum_exp, cast<double>(expected.log_sum_exp));
  require_near(got.values.output, expected.output, 1e-5);
  require_near(got.values.d_query, expected.d_query, 2e-5);
  require_near(got.values.d_key, expected.d_key, 2e-5);
  require_near(got.values.d_value, expected.d_value, 2e-5);
}

}  // namespace

TEMPLATE_TEST_CASE("attention and its gradients are as good as plain means for heads of all sizes",
                   "[quick][attention]", float, bfloat16) {
  for (const int64_t head_dim : {16, 32, 40, 64, 96, 128, 256}) {
    CAPTURE(head_dim);
    const int64_t rows = head_dim <= 64 ? 77 : 37;
    require_good(random_case<TestType>({1, 2, 1, rows, rows, head_dim}));
  }
}

TEST_CASE("attention in fp32 takes heads of any size", "[quick][attention]") {
  Case<float> c = random_case<float>({1, 1, 1, 9, 9, 5});
  c.gap = 0;
  for (auto* values : {&c.query, &c.key, &c.value, &c.d_output}) values->resize(45);
  require_good(c);
}

TEMPLATE_TEST_CASE("attention shares a key head among its query heads", "[quick][attention]", float, bfloat16) {
  for (const int64_t key_heads : {1, 2, 4}) {
    CAPTURE(key_heads);
    const int64_t rows = sizeof(TestType) == 2 ? 67 : 35;  // more than a tile
    require_good(random_case<TestType>({2, 4, key_heads, rows, rows, 32}));
  }
}

// Blocks of a ring: all keys lie before, on the diagonal, in part or wholly behind.
TEMPLATE_TEST_CASE("attention masks by global positions, queries without keys included", "[quick][attention]", float,
                   bfloat16) {
  for (const auto& [query_rows, key_rows, first_query, first_key] : {std::array<int64_t, 4>{33, 140, 500, 0},
                                                                     {130, 70, 70, 70},
                                                                     {70, 66, 3, 40},
                                                                     {20, 30, 0, 100},
                                                                     {1, 200, 150, 3}}) {
    CAPTURE(query_rows, key_rows, first_query, first_key);
    require_good(random_case<TestType>({2, 2, 1, query_rows, key_rows, 32, first_query, first_key}));
  }
}

TEMPLATE_TEST_CASE("attention does not cross document starts", "[quick][attention]", float, bfloat16) {
  for (const auto& [rows, first] : {std::pair<int64_t, int64_t>{97, 0}, {150, 1000}}) {
    auto c = random_case<TestType>({2, 2, 2, rows, rows, 32, first, first});
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t q = 0; q < rows; ++q) {
        const int64_t length = b == 0 ? 31 : 75;
        c.starts.push_back(static_cast<int32_t>(first + q / length * length));
      }
    }
    c.starts[5] = static_cast<int32_t>(first + 6);  // sees nothing
    require_good(c);
  }
}

// Blocks of the backward kernel add to the gradients of the same queries: three tiles of keys, of which some documents
// see but one or two.
TEST_CASE("blocks of keys take turns at the gradients of queries", "[quick][attention]") {
  constexpr int64_t kRows = 300;
  for (const bool documents : {false, true}) {
    CAPTURE(documents);
    auto c = random_case<bfloat16>({1, 2, 1, kRows, kRows, 16});
    for (int64_t q = 0; documents && q < kRows; ++q) c.starts.push_back(q < 120 ? 0 : q < 290 ? 120 : 290);
    require_good(c);
  }
  require_good(random_case<bfloat16>({1, 1, 1, 70, 130, 256, 60, 0}));
}

// Scores of zero give weights of a power of two; whole values then have exact averages.
TEMPLATE_TEST_CASE("attention of equal scores is the exact average", "[quick][attention]", float, bfloat16) {
  auto c = random_case<TestType>({1, 2, 1, 1, 128, 64, 127, 0});
  c.query.assign(c.query.size(), TestType(0.0F));
  for (size_t i = 0; i < c.value.size(); ++i) {
    c.value[i] = TestType(static_cast<float>(philox(1, i, 0)[0] % 2 * 128));
  }
  const auto got = on_device(c);
  const auto expected = on_cpu<float>(c);
  for (int64_t i = 0; i < 2 * 64; ++i) {
    const auto at = static_cast<size_t>(i);
    float sum = 0;
    for (int64_t k = 0; k < 128; ++k) sum += static_cast<float>(c.value[static_cast<size_t>(k * c.row(1) + i % 64)]);
    REQUIRE(static_cast<float>(got.values.output[at]) == sum / 128);
  }
  // d_value = d_output / 128, summed over both heads.
  for (int64_t i = 0; i < 64; ++i) {
    const float sum = static_cast<float>(c.d_output[static_cast<size_t>(i)]) / 128 +
                      static_cast<float>(c.d_output[static_cast<size_t>(64 + i)]) / 128;
    REQUIRE(static_cast<float>(got.values.d_value[static_cast<size_t>(i)]) == static_cast<float>(TestType(sum)));
  }
  require_near(got.log_sum_exp, expected.log_sum_exp, 1e-6);
}

TEMPLATE_TEST_CASE("attention's gradients are added with accumulate, rounded once", "[quick][attention]", float,
                   bfloat16) {
  for (const int64_t head_dim : {32, 40}) {
    auto c = random_case<TestType>({1, 2, 1, 70, 70, head_dim});
    c.gap = 0;  // all elements are gradients
    c.query.resize(static_cast<size_t>(c.query_elements()));
    c.d_output.resize(c.query.size());
    c.key.resize(static_cast<size_t>(c.key_elements()));
    c.value.resize(c.key.size());
    const auto alone = on_device(c);
    c.accumulate = true;
    const auto added = on_device(c);
    const double tolerance = sizeof(TestType) == 2 ? 0x1p-8 : 1e-6;  // the lone gradient is rounded too
    const auto compare = [&](const std::vector<TestType>& got, const std::vector<TestType>& before,
                             const std::vector<TestType>& gradient) {
      std::vector<float> expected = widened(before);
      double most = 1;
      for (size_t i = 0; i < expected.size(); ++i) {
        expected[i] += static_cast<float>(gradient[i]);
        most = std::max(most, std::abs(static_cast<double>(static_cast<float>(gradient[i]))));
      }
      require_near(got, expected, tolerance * most);
    };
    compare(added.values.d_query, held_before<TestType>(c.query_elements()), alone.values.d_query);
    compare(added.values.d_key, held_before<TestType>(c.key_elements()), alone.values.d_key);
    compare(added.values.d_value, held_before<TestType>(c.key_elements()), alone.values.d_value);
  }
}

TEST_CASE("attention's results may stay in fp32, of which those in bf16 are roundings", "[quick][attention]") {
  for (const int64_t head_dim : {40, 96, 256}) {
    CAPTURE(head_dim);
    auto c = random_case<bfloat16>({1, 2, 1, 70, 140, head_dim, 70, 0});
    const auto whole = on_device(c);
    const auto part = on_device<bfloat16, float>(c);
    require_equal(whole.values.output, rounded<bfloat16>(part.values.output));
    require_equal(whole.values.d_query, rounded<bfloat16>(part.values.d_query));
    require_equal(whole.values.d_key, rounded<bfloat16>(part.values.d_key));
    require_equal(whole.values.d_value, rounded<bfloat16>(part.values.d_value));
    c.accumulate = true;
    const auto added = on_device<bfloat16, float>(c);
    const auto compare = [&](const std::vector<float>& got, const std::vector<float>& lone, int64_t heads) {
      std::vector<float> expected = held_before<float>(static_cast<int64_t>(lone.size()));
      const auto row = static_cast<size_t>(c.row(heads)), width = static_cast<size_t>(heads * head_dim);
      for (size_t i = 0; i < lone.size(); ++i) {
        if (i % row < width) expected[i] += lone[i];
      }
      require_equal(got, expected);
    };
    compare(added.values.d_query, part.values.d_query, 2);
    compare(added.values.d_key, part.values.d_key, 1);
    compare(added.values.d_value, part.values.d_value, 1);
  }
}

TEMPLATE_TEST_CASE("large scores neither overflow nor lose the largest", "[quick][attention]", float, bfloat16) {
  auto c = random_case<TestType>({1, 1, 1, 70, 70, 32}, 30);
  c.d_output.assign(c.d_output.size(), TestType(0.0F));
  const auto got = on_device(c);
  const auto exact = on_cpu<double>(c);
  for (size_t i = 0; i < got.values.output.size(); ++i) {
    REQUIRE(std::abs(static_cast<double>(static_cast<float>(got.values.output[i])) - exact.output[i]) < 0.02);
  }
  require_log_sum_exp(got.log_sum_exp, exact.log_sum_exp);
}

TEMPLATE_TEST_CASE("a NaN among the keys is not hidden from those who see it", "[quick][attention]", float, bfloat16) {
  auto c = random_case<TestType>({1, 1, 1, 140, 140, 32});
  c.key[static_cast<size_t>(100 * c.row(1))] = TestType(std::numeric_limits<float>::quiet_NaN());
  const auto got = on_device(c);
  for (size_t q = 0; q < 140; ++q) {
    const auto first = static_cast<float>(got.values.output[q * static_cast<size_t>(c.row(1))]);
    CAPTURE(q);
    CHECK(std::isnan(first) == (q >= 100));
    CHECK(std::isnan(got.log_sum_exp[q]) == (q >= 100));
  }
}

TEMPLATE_TEST_CASE("attention merged over blocks of keys is attention over all", "[quick][attention]", float,
                   bfloat16) {
  const Stream stream;
  constexpr int64_t kRows = 50, kDim = 40;
  for (const int64_t gap : {0, 8}) {
    auto c = random_case<TestType>({2, 2, 1, kRows, 3 * kRows, kDim, 2 * kRows, 0});
    c.gap = gap;
    c.query.resize(static_cast<size_t>(c.query_elements()));
    c.key.resize(static_cast<size_t>(c.key_elements()));
    c.value.resize(c.key.size());
    const auto exact = on_cpu<double>(c);
    const DeviceArray<TestType> query(c.query), key(c.key), value(c.value), partial(c.query_elements());
    const DeviceArray<float> partial_sums(2 * 2 * kRows), output(c.query_elements()),
        sums(std::vector<float>(2 * 2 * kRows, -kInfinity));
    // The last block begins behind all queries: merging it changes nothing. Strides are those of all keys.
    for (const int64_t first_key : {kRows, int64_t{0}, 2 * kRows, 5 * kRows}) {
      const int64_t row = c.row(1), first_row = std::min(first_key, 2 * kRows);
      kernels::cuda::AttentionForwardArgs<TestType> args;
      args.shape = c.shape;
      args.shape.key_rows = kRows;
      args.shape.first_key = first_key;
      args.query = heads_of<kernels::cuda::HeadTensor, const TestType>(query, kRows, c.row(2), kDim);
      args.key = {key + first_row * row, 3 * kRows * row, row, kDim};
      args.value = {value + first_row * row, 3 * kRows * row, row, kDim};
      args.output = heads_of<kernels::cuda::HeadTensor, TestType>(partial, kRows, c.row(2), kDim);
      args.log_sum_exp = partial_sums;
      kernels::cuda::attention_forward(args, stream);
      kernels::cuda::AttentionMergeArgs<TestType> merge;
      merge.shape = args.shape;
      merge.partial_output = heads_of<kernels::cuda::HeadTensor, const TestType>(partial, kRows, c.row(2), kDim);
      merge.partial_log_sum_exp = partial_sums;
      merge.output = heads_of<kernels::cuda::HeadTensor, float>(output, kRows, c.row(2), kDim);
      merge.log_sum_exp = sums;
      kernels::cuda::attention_merge(merge, stream);
    }
    require_log_sum_exp(sums.read(stream), exact.log_sum_exp);
    const auto merged = output.read(stream);
    const double tolerance = sizeof(TestType) == 2 ? 0x1p-7 : 1e-5;
    for (size_t i = 0; i < merged.size(); ++i) {
      if (static_cast<int64_t>(i) % c.row(2) >= 2 * kDim) continue;
      REQUIRE(std::abs(static_cast<double>(merged[i]) - exact.output[i]) <= tolerance);
    }
  }
}

TEST_CASE("attention refuses what its kernels cannot take", "[quick][attention]") {
  const Stream stream;
  kernels::cuda::AttentionForwardArgs<bfloat16> args;
  args.shape = {1, 1, 1, 1, 1, 12};
  CHECK_THROWS_AS(kernels::cuda::attention_forward(args, stream), CheckFailure);  // no multiple of 8
  args.shape.head_dim = 264;
  CHECK_THROWS_AS(kernels::cuda::attention_forward(args, stream), CheckFailure);
  args.shape = {1, 3, 2, 1, 1, 16};
  CHECK_THROWS_AS(kernels::cuda::attention_forward(args, stream), CheckFailure);  // 2 key heads for 3
  args.shape = {1, 1, 1, 1, 1, 16};
  args.key.row_stride = 12;
  CHECK_THROWS_AS(kernels::cuda::attention_forward(args, stream), CheckFailure);  // rows at odd addresses
}
