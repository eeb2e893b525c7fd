// Attention against the plain formula in double precision, every score held at once.
#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

namespace quintet::kernels::cpu {
namespace {

template <typename T>
using Values = std::vector<T>;

// In [-1, 1).
Values<double> uniform(int64_t count, uint32_t seed) {
  Values<double> values(static_cast<size_t>(count));
  uint32_t state = seed * 2654435761U + 12345;
  for (double& value : values) {
    state = state * 1664525U + 1013904223U;
    value = static_cast<double>(state >> 8) / (1 << 23) - 1;
  }
  return values;
}

template <typename To, typename From>
Values<To> cast(const Values<From>& values) {
  Values<To> result(values.size());
  std::transform(values.begin(), values.end(), result.begin(), [](From value) { return static_cast<To>(value); });
  return result;
}

template <typename T>
struct Inputs {
  AttentionShape shape;
  Values<T> query, key, value, d_output;
};
template <typename T>
struct Outputs {
  Values<T> output, log_sum_exp;
};
template <typename T>
struct Gradients {
  Values<T> query, key, value;
};

int64_t query_elements(const AttentionShape& s) { return s.batch * s.query_rows * s.heads * s.head_dim; }
int64_t key_elements(const AttentionShape& s) { return s.batch * s.key_rows * s.key_heads * s.head_dim; }

// Values that T holds exactly, so that a reference in double sees the same ones.
template <typename T>
Inputs<T> random_inputs(const AttentionShape& shape, double size = 1) {
  auto values = [&](int64_t count, uint32_t seed) {
    Values<double> result = uniform(count, seed);
    for (double& value : result) value *= size;
    return cast<T>(result);
  };
  return {shape, values(query_elements(shape), 1), values(key_elements(shape), 2), values(key_elements(shape), 3),
          cast<T>(uniform(query_elements(shape), 4))};
}

template <typename To, typename From>
Inputs<To> cast(const Inputs<From>& in) {
  return {in.shape, cast<To>(in.query), cast<To>(in.key), cast<To>(in.value), cast<To>(in.d_output)};
}

bool sees(const AttentionShape& s, int64_t b, int64_t q, int64_t k) {
  const int64_t position = s.first_key + k;
  const bool same_document =
      s.document_starts == nullptr || position >= s.document_starts[static_cast<size_t>(b * s.query_rows + q)];
  return position <= s.first_query + q && same_document;
}

// The formula and its derivative.
void reference(const Inputs<double>& in, Outputs<double>& out, Gradients<double>& d) {
  const AttentionShape& s = in.shape;
  out.output.assign(in.query.size(), 0);
  out.log_sum_exp.assign(static_cast<size_t>(s.batch * s.heads * s.query_rows),
                         -std::numeric_limits<double>::infinity());
  d.query.assign(in.query.size(), 0), d.key.assign(in.key.size(), 0), d.value.assign(in.key.size(), 0);
  const double scale = 1 / std::sqrt(static_cast<double>(s.head_dim));
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      const int64_t key_head = h / (s.heads / s.key_heads);
      for (int64_t q = 0; q < s.query_rows; ++q) {
        const int64_t row = ((b * s.query_rows + q) * s.heads + h) * s.head_dim;
        auto key_row = [&](int64_t k) { return ((b * s.key_rows + k) * s.key_heads + key_head) * s.head_dim; };
        auto dot = [&](const Values<double>& x, int64_t x_at, const Values<double>& y, int64_t y_at) {
          double sum = 0;
          for (int64_t i = 0; i < s.head_dim; ++i)
            sum += x[static_cast<size_t>(x_at + i)] * y[static_cast<size_t>(y_at + i)];
          return sum;
        };
        Values<double> scores(static_cast<size_t>(s.key_rows), -std::numeric_limits<double>::infinity());
        for (int64_t k = 0; k < s.key_rows; ++k) {
          if (sees(s, b, q, k)) scores[static_cast<size_t>(k)] = scale * dot(in.query, row, in.key, key_row(k));
        }
        const double maximum =
            scores.empty() ? -std::numeric_limits<double>::infinity() : *std::max_element(scores.begin(), scores.end());
        if (std::isinf(maximum)) continue;
        double total = 0;
        for (const double score : scores) total += std::exp(score - maximum);
        out.log_sum_exp[static_cast<size_t>((b * s.heads + h) * s.query_rows + q)] = maximum + std::log(total);
        double delta = 0;
        for (int64_t k = 0; k < s.key_rows; ++k) {
          delta +=
              std::exp(scores[static_cast<size_t>(k)] - maximum) / total * dot(in.d_output, row, in.value, key_row(k));
        }
        for (int64_t k = 0; k < s.key_rows; ++k) {
          const double p = std::exp(scores[static_cast<size_t>(k)] - maximum) / total;
          const double ds = p * (dot(in.d_output, row, in.value, key_row(k)) - delta) * scale;
          for (int64_t i = 0; i < s.head_dim; ++i) {
            const auto at_q = static_cast<size_t>(row + i), at_k = static_cast<size_t>(key_row(k) + i);
            out.output[at_q] += p * in.value[at_k];
            d.query[at_q] += ds * in.key[at_k];
            d.key[at_k] += ds * in.query[at_q];
            d.value[at_k] += p * in.d_output[at_q];
          }
        }
      }
    }
  }
}

template <typename T>
HeadTensor<T> heads_of(T* data, int64_t rows, int64_t heads, const AttentionShape& s) {
  return HeadTensor<T>::contiguous(data, rows, heads, s.head_dim);
}

// Outputs begin as NaN: whatever is not written shows.
template <typename T>
Outputs<T> forward(const Inputs<T>& in, int threads) {
  const AttentionShape& s = in.shape;
  Outputs<T> out{Values<T>(in.query.size(), std::numeric_limits<T>::quiet_NaN()),
                 Values<T>(static_cast<size_t>(s.batch * s.heads * s.query_rows), std::numeric_limits<T>::quiet_NaN())};
  AttentionForwardArgs<T> args;
  args.shape = s;
  args.query = heads_of(in.query.data(), s.query_rows, s.heads, s);
  args.key = heads_of(in.key.data(), s.key_rows, s.key_heads, s);
  args.value = heads_of(in.value.data(), s.key_rows, s.key_heads, s);
  args.output = heads_of(out.output.data(), s.query_rows, s.heads, s);
  args.log_sum_exp = out.log_sum_exp.data();
  args.threads = threads;
  attention_forward(args);
  return out;
}

template <typename T>
void backward(const Inputs<T>& in, const Outputs<T>& out, int threads, bool accumulate, Gradients<T>& d) {
  const AttentionShape& s = in.shape;
  AttentionBackwardArgs<T> args;
  args.shape = s;
  args.query = heads_of(in.query.data(), s.query_rows, s.heads, s);
  args.key = heads_of(in.key.data(), s.key_rows, s.key_heads, s);
  args.value = heads_of(in.value.data(), s.key_rows, s.key_heads, s);
  args.output = heads_of(out.output.data(), s.query_rows, s.heads, s);
  args.d_output = heads_of(in.d_output.data(), s.query_rows, s.heads, s);
  args.log_sum_exp = out.log_sum_exp.data();
  args.d_query = heads_of(d.query.data(), s.query_rows, s.heads, s);
  args.d_key = heads_of(d.key.data(), s.key_rows, s.key_heads, s);
  args.d_value = heads_of(d.value.data(), s.key_rows, s.key_heads, s);
  args.accumulate = accumulate;
  args.threads = threads;
  attention_backward(args);
}

template <typename T>
Gradients<T> filled(const AttentionShape& s, T value) {
  return {Values<T>(static_cast<size_t>(query_elements(s)), value),
          Values<T>(static_cast<size_t>(key_elements(s)), value),
          Values<T>(static_cast<size_t>(key_elements(s)), value)};
}

template <typename T>
Gradients<T> backward(const Inputs<T>& in, const Outputs<T>& out, int threads) {
  Gradients<T> d = filled<T>(in.shape, std::numeric_limits<T>::quiet_NaN());
  backward(in, out, threads, false, d);
  return d;
}

template <typename T>
void require_close(const std::string& name, const Values<T>& actual, const Values<double>& expected, double tolerance) {
  double largest = 0.1;  // differences of terms of about 1 may vanish
  for (const double value : expected) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  REQUIRE(actual.size() == expected.size());
  const auto wrong = [&](size_t i) {  // true of NaN, false of equal infinities
    const auto value = static_cast<double>(actual[i]);
    return value != expected[i] && !(std::abs(value - expected[i]) <= tolerance * largest);
  };
  size_t i = 0;
  while (i < actual.size() && !wrong(i)) ++i;
  if (i == actual.size()) return;
  INFO(name << " [" << i << "] of a scale of " << largest);
  REQUIRE(static_cast<double>(actual[i]) == expected[i]);
}

template <typename T>
constexpr double kTolerance = sizeof(T) == 4 ? 4e-6 : 1e-13;

template <typename T>
void require_reference(const Inputs<T>& in) {
  Outputs<double> expected;
  Gradients<double> gradients;
  reference(cast<double>(in), expected, gradients);
  const Outputs<T> out = forward(in, 1);
  require_close("output", out.output, expected.output, kTolerance<T>);
  require_close("log_sum_exp", out.log_sum_exp, expected.log_sum_exp, kTolerance<T>);
  const Gradients<T> d = backward(in, out, 1);
  require_close("d_query", d.query, gradients.query, kTolerance<T>);
  require_close("d_key", d.key, gradients.key, kTolerance<T>);
  require_close("d_value", d.value, gradients.value, kTolerance<T>);
  for (const int threads : {2, 3}) {
    const Outputs<T> again = forward(in, threads);
    REQUIRE(again.output == out.output);
    REQUIRE(again.log_sum_exp == out.log_sum_exp);
    const Gradients<T> d_again = backward(in, out, threads);
    REQUIRE(d_again.query == d.query);
    REQUIRE(d_again.key == d.key);
    REQUIRE(d_again.value == d.value);
  }
}

AttentionShape shape_of(int64_t batch, int64_t heads, int64_t key_heads, int64_t query_rows, int64_t key_rows,
                        int64_t head_dim, int64_t first_query = 0, int64_t first_key = 0) {
  return {batch, heads, key_heads, query_rows, key_rows, head_dim, first_query, first_key, nullptr};
}

}  // namespace

TEMPLATE_TEST_CASE("attention and its gradients follow the formula", "[quick][attention]", float, double) {
  const AttentionShape shape = GENERATE(
      // head dimensions
      shape_of(2, 2, 2, 33, 33, 5), shape_of(1, 2, 2, 20, 20, 8), shape_of(1, 1, 1, 70, 70, 64),
      shape_of(1, 2, 1, 40, 40, 96), shape_of(1, 1, 1, 67, 67, 128), shape_of(1, 1, 1, 19, 19, 256),
      // lengths about the tiles' edges
      shape_of(1, 2, 2, 1, 1, 16), shape_of(1, 1, 1, 64, 64, 16), shape_of(1, 1, 1, 128, 128, 16),
      shape_of(1, 1, 1, 129, 129, 16), shape_of(1, 1, 1, 259, 259, 24),
      // grouped heads
      shape_of(2, 6, 2, 31, 31, 16), shape_of(1, 8, 1, 17, 17, 16));
  require_reference(random_inputs<TestType>(shape));
}

TEMPLATE_TEST_CASE("attention masks by global positions", "[quick][attention]", float, double) {
  const AttentionShape shape = GENERATE(shape_of(1, 2, 1, 50, 90, 16, 40, 0),    // queries late in the sequence
                                        shape_of(2, 2, 2, 90, 50, 16, 100, 30),  // all keys in the past
                                        shape_of(1, 2, 2, 70, 140, 16, 10, 0),   // keys that nobody sees
                                        shape_of(1, 2, 2, 150, 40, 16, 5, 20),   // the first 15 queries see nothing
                                        shape_of(1, 1, 1, 200, 200, 8, 0, 1),    // shifted by one
                                        shape_of(1, 1, 1, 30, 30, 16, 0, 30),    // nobody sees anything
                                        shape_of(1, 1, 1, 3, 300, 16, 297, 0));  // a few queries, many keys
  require_reference(random_inputs<TestType>(shape));
}

TEMPLATE_TEST_CASE("attention does not cross document starts", "[quick][attention]", float, double) {
  AttentionShape shape = shape_of(2, 4, 2, 150, 150, 16);
  const int offset = GENERATE(0, 70);  // with 70, the first rows' documents began before these keys
  shape.first_query = shape.first_key = offset;
  std::vector<int32_t> starts(300);
  for (int32_t b = 0; b < 2; ++b) {
    for (int32_t q = 0; q < 150; ++q) {
      const int32_t position = q + offset, length = b == 0 ? 7 : 97;
      starts[static_cast<size_t>(b * 150 + q)] = position / length * length;
    }
  }
  shape.document_starts = starts.data();
  require_reference(random_inputs<TestType>(shape));
}

TEMPLATE_TEST_CASE("a query without keys gives zero, -inf and no gradient", "[quick][attention]", float, double) {
  AttentionShape shape = shape_of(1, 2, 1, 9, 30, 16);
  // Query 4's document begins after it.
  const std::vector<int32_t> starts = {0, 0, 0, 0, 5, 0, 0, 0, 0};
  shape.document_starts = starts.data();
  const Inputs<TestType> in = random_inputs<TestType>(shape);
  const Outputs<TestType> out = forward(in, 1);
  const Gradients<TestType> d = backward(in, out, 1);
  for (size_t h = 0; h < 2; ++h) {
    REQUIRE(out.log_sum_exp[h * 9 + 4] == -std::numeric_limits<TestType>::infinity());
    for (size_t i = 0; i < 16; ++i) {
      REQUIRE(out.output[(4 * 2 + h) * 16 + i] == 0);
      REQUIRE(d.query[(4 * 2 + h) * 16 + i] == 0);
    }
  }
  require_reference(in);
}

TEMPLATE_TEST_CASE("blocks of keys merged by log-sum-exp equal one block, gradients by accumulation",
                   "[quick][attention]", float, double) {
  const AttentionShape whole_shape = shape_of(1, 4, 2, 61, 130, 16, 69, 0);
  const Inputs<TestType> whole = random_inputs<TestType>(whole_shape);
  Outputs<double> expected;
  Gradients<double> expected_d;
  reference(cast<double>(whole), expected, expected_d);
  const Outputs<TestType> out = forward(whole, 1);

  const int64_t row = whole_shape.key_heads * whole_shape.head_dim;
  Values<double> merged(whole.query.size(), 0), log_sum_exp(out.log_sum_exp.size(), -1e300);
  Gradients<TestType> d = filled<TestType>(whole_shape, 0);
  d.key.clear(), d.value.clear();
  int64_t begin = 0;
  for (const int64_t size : {50, 3, 77}) {  // the last holds keys that only some queries see
    Inputs<TestType> block = whole;
    block.shape.first_key = begin, block.shape.key_rows = size;
    block.key.assign(whole.key.begin() + begin * row, whole.key.begin() + (begin + size) * row);
    block.value.assign(whole.value.begin() + begin * row, whole.value.begin() + (begin + size) * row);
    const Outputs<TestType> part = forward(block, 2);
    for (int64_t h = 0; h < 4; ++h) {
      for (int64_t q = 0; q < 61; ++q) {
        const auto at = static_cast<size_t>(h * 61 + q);
        const double before = log_sum_exp[at], here = static_cast<double>(part.log_sum_exp[at]);
        const double both = std::max(before, here) + std::log1p(std::exp(-std::abs(before - here)));
        for (int64_t i = 0; i < 16; ++i) {
          const auto element = static_cast<size_t>((q * 4 + h) * 16 + i);
          merged[element] = merged[element] * std::exp(before - both) +
                            static_cast<double>(part.output[element]) * std::exp(here - both);
        }
        log_sum_exp[at] = both;
      }
    }
    Gradients<TestType> part_d = filled<TestType>(block.shape, 0);
    part_d.query = d.query;
    backward(block, out, 2, true, part_d);
    d.query = part_d.query;
    d.key.insert(d.key.end(), part_d.key.begin(), part_d.key.end());
    d.value.insert(d.value.end(), part_d.value.begin(), part_d.value.end());
    begin += size;
  }
  require_close("output", merged, expected.output, kTolerance<TestType>);
  require_close("log_sum_exp", log_sum_exp, expected.log_sum_exp, kTolerance<TestType>);
  require_close("d_query", d.query, expected_d.query, kTolerance<TestType>);
  require_close("d_key", d.key, expected_d.key, kTolerance<TestType>);
  require_close("d_value", d.value, expected_d.value, kTolerance<TestType>);
}

TEMPLATE_TEST_CASE("merging attention over blocks of keys gives attention over all, in any order",
                   "[quick][attention][merge]", float, double) {
  AttentionShape shape = shape_of(2, 4, 2, 61, 130, 16, 69, 0);
  std::vector<int32_t> starts(122, 0);
  for (size_t i = 61; i < starts.size(); ++i) starts[i] = 128;  // most of these see nothing
  shape.document_starts = starts.data();
  const Inputs<TestType> whole = random_inputs<TestType>(shape);
  Outputs<double> expected;
  Gradients<double> unused;
  reference(cast<double>(whole), expected, unused);
  const int64_t row = shape.key_heads * shape.head_dim;
  const std::vector<int64_t> begins =
      GENERATE(std::vector<int64_t>{50, 0, 53, 130}, std::vector<int64_t>{0, 50, 53}, std::vector<int64_t>{53, 50, 0});
  for (const int threads : {1, 3}) {
    // The running output is NaN until something is merged into it.
    Outputs<TestType> merged{Values<TestType>(whole.query.size(), std::numeric_limits<TestType>::quiet_NaN()),
                             Values<TestType>(2 * 4 * 61, -std::numeric_limits<TestType>::infinity())};
    for (const int64_t begin : begins) {
      const int64_t end = begin == 0 ? 50 : begin == 50 ? 53 : 130;
      Inputs<TestType> block = whole;
      block.shape.first_key = begin, block.shape.key_rows = end - begin;
      block.key.clear(), block.value.clear();
      for (int64_t b = 0; b < 2; ++b) {
        const auto slice = [&](const Values<TestType>& from, Values<TestType>& to) {
          const auto first = from.begin() + b * shape.key_rows * row;
          to.insert(to.end(), first + begin * row, first + end * row);
        };
        slice(whole.key, block.key), slice(whole.value, block.value);
      }
      const Outputs<TestType> part = forward(block, threads);
      AttentionMergeArgs<TestType> args;
      args.shape = shape;
      args.partial_output = heads_of(part.output.data(), 61, 4, shape);
      args.partial_log_sum_exp = part.log_sum_exp.data();
      args.output = heads_of(merged.output.data(), 61, 4, shape);
      args.log_sum_exp = merged.log_sum_exp.data();
      args.threads = threads;
      attention_merge(args);
    }
    require_close("output", merged.output, expected.output, kTolerance<TestType>);
    require_close("log_sum_exp", merged.log_sum_exp, expected.log_sum_exp, kTolerance<TestType>);
  }
}

TEMPLATE_TEST_CASE("a merge neither overflows nor hides a NaN", "[quick][attention][merge]", float, double) {
  constexpr auto kNaN = std::numeric_limits<TestType>::quiet_NaN();
  const auto merge = [](TestType running, TestType at, TestType partial, TestType at_partial) {
    AttentionMergeArgs<TestType> args;
    args.shape = {.batch = 1, .heads = 1, .query_rows = 1, .head_dim = 1};
    args.partial_output = HeadTensor<const TestType>::contiguous(&partial, 1, 1, 1);
    args.partial_log_sum_exp = &at_partial;
    args.output = HeadTensor<TestType>::contiguous(&running, 1, 1, 1);
    args.log_sum_exp = &at;
    attention_merge(args);
    return std::pair<double, double>(running, at);
  };
  REQUIRE(merge(2, 1e30F, 5, 0) == std::pair<double, double>(2, static_cast<TestType>(1e30F)));
  REQUIRE(merge(2, -1e30F, 5, 1e30F) == std::pair<double, double>(5, static_cast<TestType>(1e30F)));
  REQUIRE(merge(2, 800, 4, 800).first == 3);
  REQUIRE(merge(2, 800, 4, 800).second == Approx(800 + std::log(2.0)));
  for (const auto& [output, log_sum_exp] : {merge(2, kNaN, 4, 0), merge(2, 0, 4, kNaN)}) {
    REQUIRE(std::isnan(output));
    REQUIRE(std::isnan(log_sum_exp));
  }
  REQUIRE(std::isnan(merge(kNaN, 0, 4, 0).first));
}

TEST_CASE("attention's gradients are added with accumulate", "[quick][attention]") {
  const Inputs<double> in = random_inputs<double>(shape_of(1, 2, 1, 40, 70, 16, 10, 0));
  const Outputs<double> out = forward(in, 1);
  const Gradients<double> once = backward(in, out, 1);
  Gradients<double> sum = filled<double>(in.shape, 1.5);
  backward(in, out, 1, true, sum);
  for (const auto member : {&Gradients<double>::query, &Gradients<double>::key, &Gradients<double>::value}) {
    Values<double> expected = once.*member;
    for (double& value : expected) value += 1.5;
    require_close("sum", sum.*member, expected, 1e-13);
  }
}

TEST_CASE("attention's gradients are the slopes of its output", "[quick][attention]") {
  AttentionShape shape = shape_of(2, 4, 2, 37, 45, 12, 8, 0);
  std::vector<int32_t> starts(74, 0);
  for (size_t i = 50; i < starts.size(); ++i) starts[i] = 11;
  shape.document_starts = starts.data();
  const Inputs<double> in = random_inputs<double>(shape);
  const Gradients<double> d = backward(in, forward(in, 1), 1);
  auto loss = [](const Inputs<double>& at) {
    const Outputs<double> out = forward(at, 1);
    double sum = 0;
    for (size_t i = 0; i < out.output.size(); ++i) sum += out.output[i] * at.d_output[i];
    return sum;
  };
  constexpr double kStep = 1e-5;
  auto require_slope = [&](Values<double> Inputs<double>::*input, const Values<double>& gradient, uint32_t seed) {
    const Values<double> direction = uniform(static_cast<int64_t>(gradient.size()), seed);
    Inputs<double> up = in, down = in;
    double slope = 0;
    for (size_t i = 0; i < gradient.size(); ++i) {
      (up.*input)[i] += kStep * direction[i];
      (down.*input)[i] -= kStep * direction[i];
      slope += gradient[i] * direction[i];
    }
    REQUIRE((loss(up) - loss(down)) / (2 * kStep) == Approx(slope).epsilon(1e-7));
  };
  require_slope(&Inputs<double>::query, d.query, 11);
  require_slope(&Inputs<double>::key, d.key, 12);
  require_slope(&Inputs<double>::value, d.value, 13);
}

TEMPLATE_TEST_CASE("large scores neither overflow nor lose the largest", "[quick][attention]", float, double) {
  const Inputs<TestType> in = random_inputs<TestType>(shape_of(1, 2, 2, 150, 150, 16), 60);
  Outputs<double> expected;
  Gradients<double> unused;
  reference(cast<double>(in), expected, unused);
  const Outputs<TestType> out = forward(in, 1);
  // A score of 10^4 is known to 10^-3 only in fp32.
  require_close("output", out.output, expected.output, sizeof(TestType) == 4 ? 5e-3 : 1e-11);
  require_close("log_sum_exp", out.log_sum_exp, expected.log_sum_exp, kTolerance<TestType>);
  for (const TestType value : backward(in, out, 1).query) REQUIRE(std::isfinite(value));
}

TEMPLATE_TEST_CASE("a NaN among the inputs is not hidden", "[quick][attention]", float, double) {
  Inputs<TestType> in = random_inputs<TestType>(shape_of(1, 1, 1, 40, 40, 16));
  Values<TestType> Inputs<TestType>::*const input =
      GENERATE(&Inputs<TestType>::query, &Inputs<TestType>::key, &Inputs<TestType>::value);
  (in.*input)[17 * 16 + 3] = std::numeric_limits<TestType>::quiet_NaN();
  const Outputs<TestType> out = forward(in, 1);
  REQUIRE(std::isnan(out.output[17 * 16 + 3]));
  REQUIRE(std::isnan(backward(in, out, 1).value[3]) == (input != &Inputs<TestType>::value));
}

TEMPLATE_TEST_CASE("attention reads and writes by strides, the same bits at any address and beside other ranks",
                   "[quick][attention]", float, double) {
  const AttentionShape shape = shape_of(2, 3, 3, 75, 75, 20);
  const Inputs<TestType> in = random_inputs<TestType>(shape);
  const Outputs<TestType> out = forward(in, 1);
  const Gradients<TestType> d = backward(in, out, 1);

  // Query, key and value side by side as [B, S, 3, N, D], `shift` elements off an allocation.
  auto fused_equals = [&](size_t shift) {
    constexpr int64_t kRow = 3 * 20, kRows = 75;
    auto fuse = [&](const Values<TestType>& q, const Values<TestType>& k, const Values<TestType>& v) {
      Values<TestType> fused(shift);
      for (int64_t row = 0; row < 2 * kRows; ++row) {
        for (const auto* part : {&q, &k, &v}) {
          fused.insert(fused.end(), part->begin() + row * kRow, part->begin() + (row + 1) * kRow);
        }
      }
      return fused;
    };
    auto part = [&](auto* data, int64_t index) {
      using Element = std::remove_pointer_t<decltype(data)>;
      return HeadTensor<Element>{data + shift + index * kRow, kRows * kRow * 3, kRow * 3, 20};
    };
    auto one = [&](auto* data) { return heads_of(data + shift, kRows, 3, shape); };
    const Values<TestType> inputs = fuse(in.query, in.key, in.value);
    Values<TestType> d_output(shift), output(out.output.size() + shift), log_sum_exp(out.log_sum_exp.size());
    d_output.insert(d_output.end(), in.d_output.begin(), in.d_output.end());
    Values<TestType> gradients(inputs.size(), 0);

    AttentionForwardArgs<TestType> ahead;
    ahead.shape = shape, ahead.threads = 2;
    ahead.query = part(inputs.data(), 0), ahead.key = part(inputs.data(), 1), ahead.value = part(inputs.data(), 2);
    ahead.output = one(output.data()), ahead.log_sum_exp = log_sum_exp.data();
    attention_forward(ahead);
    AttentionBackwardArgs<TestType> back;
    back.shape = shape, back.threads = 2;
    back.query = ahead.query, back.key = ahead.key, back.value = ahead.value;
    back.output = one(static_cast<const TestType*>(output.data()));
    back.d_output = one(static_cast<const TestType*>(d_output.data()));
    back.log_sum_exp = log_sum_exp.data();
    back.d_query = part(gradients.data(), 0), back.d_key = part(gradients.data(), 1);
    back.d_value = part(gradients.data(), 2);
    attention_backward(back);
    return std::equal(out.output.begin(), out.output.end(), output.begin() + static_cast<std::ptrdiff_t>(shift)) &&
           log_sum_exp == out.log_sum_exp && gradients == fuse(d.query, d.key, d.value);
  };

  for (const size_t shift : {0, 1, 3}) REQUIRE(fused_equals(shift));
  std::vector<int> equal(4, 0);
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < equal.size(); ++rank) {
    ranks.emplace_back([&, rank] { equal[rank] = fused_equals(rank) ? 1 : 0; });
  }
  for (std::thread& rank : ranks) rank.join();
  REQUIRE(equal == std::vector<int>(equal.size(), 1));
}

}  // namespace quintet::kernels::cpu
