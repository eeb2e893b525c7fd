#include <catch2/catch.hpp>

#include <limits>
#include <vector>

#include "lib/device/device.h"
#include "tests/support/arrays.h"
#include "tests/support/finite_difference.h"

using namespace quintet;
using namespace quintet::device;
using namespace quintet::testing;

namespace {

template <typename T>
struct Statistics {
  Array<T> maximum, sum_exp, target_logit;
  explicit Statistics(int64_t rows) : maximum({rows}), sum_exp({rows}), target_logit({rows}) {}
};

template <typename T>
CrossEntropyStatistics statistics_op(const Array<T>& logits, const Array<int32_t>& targets, int64_t start,
                                     int64_t valid, const Statistics<T>& statistics) {
  return {.logits = logits,
          .targets = targets,
          .vocabulary_start = start,
          .valid = valid,
          .maximum = statistics.maximum,
          .sum_exp = statistics.sum_exp,
          .target_logit = statistics.target_logit};
}

template <typename T>
double loss_of(Device& device, const Array<T>& logits, const Array<int32_t>& targets, int64_t valid) {
  const Statistics<T> statistics(targets.size());
  const CrossEntropyStatistics op = statistics_op(logits, targets, 0, valid, statistics);
  device.cross_entropy_statistics(op);
  ExactSum sum;
  device.cross_entropy_sum(
      {.targets = op.targets, .maximum = op.maximum, .sum_exp = op.sum_exp, .target_logit = op.target_logit}, sum);
  return sum.value();
}

Array<int32_t> targets_of(const std::vector<int32_t>& targets) {
  return Array<int32_t>::of({static_cast<int64_t>(targets.size())}, targets);
}

}  // namespace

TEMPLATE_TEST_CASE("cross entropy is the mean surprise of the rows that count", "[quick][ops][loss]", float, double) {
  using T = TestType;
  const auto device = make_cpu_device(2);
  for (const int64_t columns : {2, 5, 33, 64, 1003}) {
    const int64_t valid = columns - 1;  // the last column is padding
    auto logits = Array<T>::random({5, columns}, 1, 3);
    for (int64_t t = 0; t < 5; ++t) logits[t * columns + valid] = std::numeric_limits<T>::quiet_NaN();
    const auto targets = targets_of({0, -1, static_cast<int32_t>(valid - 1), static_cast<int32_t>(valid / 2), -1});
    double expected = 0;
    for (int64_t t = 0; t < 5; ++t) {
      if (targets[t] < 0) continue;
      double sum = 0;
      for (int64_t c = 0; c < valid; ++c) sum += std::exp(static_cast<double>(logits[t * columns + c]));
      expected += std::log(sum) - static_cast<double>(logits[t * columns + targets[t]]);
    }
    CHECK(loss_of(*device, logits, targets, valid) == Approx(expected).epsilon(kRounding<T>));
  }
}

TEST_CASE("cross entropy gradients are those of finite differences, zero in uncounted rows and padding",
          "[quick][ops][loss]") {
  const auto device = make_cpu_device(2);
  const int64_t rows = 4, columns = 33, valid = 30;
  auto logits = Array<double>::random({rows, columns}, 1, 2);
  const auto targets = targets_of({29, -1, 0, 7});
  const double scale = 1.0 / 3;
  const Statistics<double> statistics(rows);
  device->cross_entropy_statistics(statistics_op(logits, targets, 0, valid, statistics));
  auto gradient = logits;
  device->cross_entropy_gradient({.logits = gradient,
                                  .targets = targets,
                                  .vocabulary_start = 0,
                                  .valid = valid,
                                  .maximum = statistics.maximum,
                                  .sum_exp = statistics.sum_exp,
                                  .scale = scale});
  CHECK(gradient_error(logits.span(), gradient.span(),
                       [&] { return loss_of(*device, logits, targets, valid) * scale; }) < 1e-8);
  for (int64_t c = 0; c < columns; ++c) CHECK(gradient[columns + c] == 0);
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t c = valid; c < columns; ++c) CHECK(gradient[t * columns + c] == 0);
  }
}

TEMPLATE_TEST_CASE("shards of a vocabulary combine to the whole", "[quick][ops][loss]", float, double) {
  using T = TestType;
  const auto device = make_cpu_device(1);
  const int64_t rows = 3, columns = 40, shard = 16;  // 16 + 16 + 8 valid columns and 8 of padding
  const auto whole = Array<T>::random({rows, columns}, 1, 3);
  const auto targets = targets_of({5, 16, 39});  // 16 is the first of a shard
  const Statistics<T> expected(rows);
  device->cross_entropy_statistics(statistics_op(whole, targets, 0, columns, expected));
  auto whole_gradient = whole;
  device->cross_entropy_gradient({.logits = whole_gradient,
                                  .targets = targets,
                                  .vocabulary_start = 0,
                                  .valid = columns,
                                  .maximum = expected.maximum,
                                  .sum_exp = expected.sum_exp,
                                  .scale = 0.5});

  std::vector<double> sum(3), target(3);
  for (int64_t start = 0; start < columns; start += shard) {
    const int64_t valid = std::min(shard, columns - start);
    Array<T> logits({rows, shard});
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t c = 0; c < valid; ++c) logits[t * shard + c] = whole[t * columns + start + c];
    }
    const Statistics<T> part(rows);
    device->cross_entropy_statistics(statistics_op(logits, targets, start, valid, part));
    for (int64_t t = 0; t < rows; ++t) {
      sum[t] +=
          static_cast<double>(part.sum_exp[t]) * std::exp(static_cast<double>(part.maximum[t] - expected.maximum[t]));
      target[t] += static_cast<double>(part.target_logit[t]);
    }
    device->cross_entropy_gradient({.logits = logits,
                                    .targets = targets,
                                    .vocabulary_start = start,
                                    .valid = valid,
                                    .maximum = expected.maximum,
                                    .sum_exp = expected.sum_exp,
                                    .scale = 0.5});
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t c = 0; c < shard; ++c) {
        REQUIRE(logits[t * shard + c] == (c < valid ? whole_gradient[t * columns + start + c] : T{0}));
      }
    }
  }
  for (int64_t t = 0; t < rows; ++t) {
    CHECK(sum[t] == Approx(static_cast<double>(expected.sum_exp[t])).epsilon(kRounding<T>));
    CHECK(target[t] == static_cast<double>(expected.target_logit[t]));
  }
}

TEMPLATE_TEST_CASE("merged statistics of shards are those of the whole, and so are the gradients", "[quick][ops][loss]",
                   float, double) {
  using T = TestType;
  const auto device = make_cpu_device(2);
  const double tolerance = sizeof(T) == 4 ? 1e-6 : 1e-14;
  // Where each shard begins; the last ends where the vocabulary does, and one of them is empty.
  const std::vector<std::vector<int64_t>> cuts = {{0, 77}, {0, 1, 77}, {0, 30, 31, 77}, {0, 20, 20, 61, 77}};
  for (const int64_t rows : {1, 5, 67, 9000}) {
    const int64_t vocabulary = 77;
    auto whole = Array<T>::random({rows, vocabulary}, static_cast<uint64_t>(rows), 2);
    std::vector<int32_t> chosen(static_cast<size_t>(rows));
    for (int64_t t = 0; t < rows; ++t) {
      chosen[static_cast<size_t>(t)] = static_cast<int32_t>(t * 13 % (vocabulary + 1)) - 1;
      // Far from 0, and each shard's maximum far from the others'.
      for (int64_t c = 0; c < vocabulary; ++c) {
        const int64_t level = t % 7 * 20 - c / 20 * 8;
        whole[t * vocabulary + c] += static_cast<T>(level);
      }
    }
    const auto targets = targets_of(chosen);
    const Statistics<T> expected(rows);
    device->cross_entropy_statistics(statistics_op(whole, targets, 0, vocabulary, expected));
    auto whole_gradient = whole;
    device->cross_entropy_gradient({.logits = whole_gradient,
                                    .targets = targets,
                                    .vocabulary_start = 0,
                                    .valid = vocabulary,
                                    .maximum = expected.maximum,
                                    .sum_exp = expected.sum_exp,
                                    .scale = 0.5});
    for (const std::vector<int64_t>& starts : cuts) {
      const auto count = static_cast<int64_t>(starts.size()) - 1;
      const Array<T> shards({count, 3, rows});
      std::vector<Array<T>> logits;
      const auto width = [&](int64_t s) { return starts[static_cast<size_t>(s) + 1] - starts[static_cast<size_t>(s)]; };
      for (int64_t s = 0; s < count; ++s) {
        const int64_t start = starts[static_cast<size_t>(s)], columns = width(s) + 2;  // two of padding
        Array<T> part({rows, columns});
        for (int64_t t = 0; t < rows; ++t) {
          for (int64_t c = 0; c < width(s); ++c) part[t * columns + c] = whole[t * vocabulary + start + c];
        }
        T* place = shards.data() + s * 3 * rows;
        const Tensor maximum(place, kDTypeOf<T>, {rows}), sum_exp(place + rows, kDTypeOf<T>, {rows}),
            target_logit(place + 2 * rows, kDTypeOf<T>, {rows});
        device->cross_entropy_statistics({.logits = part,
                                          .targets = targets,
                                          .vocabulary_start = start,
                                          .valid = width(s),
                                          .maximum = maximum,
                                          .sum_exp = sum_exp,
                                          .target_logit = target_logit});
        logits.push_back(part);
      }
      const Statistics<T> merged(rows);
      device->cross_entropy_merge({.shards = shards,
                                   .maximum = merged.maximum,
                                   .sum_exp = merged.sum_exp,
                                   .target_logit = merged.target_logit});
      INFO(rows << " rows in " << count << " shards");
      CHECK(same_bits(merged.maximum, expected.maximum));
      CHECK(same_bits(merged.target_logit, expected.target_logit));
      CHECK(difference(merged.sum_exp, expected.sum_exp) < tolerance);
      if (count == 1) CHECK(same_bits(merged.sum_exp, expected.sum_exp));

      for (int64_t s = 0; s < count; ++s) {
        const int64_t start = starts[static_cast<size_t>(s)], columns = width(s) + 2;
        Array<T>& part = logits[static_cast<size_t>(s)];
        device->cross_entropy_gradient({.logits = part,
                                        .targets = targets,
                                        .vocabulary_start = start,
                                        .valid = width(s),
                                        .maximum = merged.maximum,
                                        .sum_exp = merged.sum_exp,
                                        .scale = 0.5});
        Array<T> expected_columns({rows, columns});
        for (int64_t t = 0; t < rows; ++t) {
          for (int64_t c = 0; c < width(s); ++c)
            expected_columns[t * columns + c] = whole_gradient[t * vocabulary + start + c];
        }
        CHECK(difference(part, expected_columns) < tolerance);
      }
    }
  }
}

TEMPLATE_TEST_CASE("a shard without weight adds nothing to a merge, and NaN stays visible", "[quick][ops][loss]", float,
                   double) {
  using T = TestType;
  const auto device = make_cpu_device(1);
  constexpr T kInfinity = std::numeric_limits<T>::infinity(), kNan = std::numeric_limits<T>::quiet_NaN();
  // Rows: an empty shard first, none of any weight, a NaN in an empty and in a full shard, an overflow, far apart.
  const auto shards =
      Array<T>::of({2, 3, 6}, std::vector<T>{-kInfinity, -kInfinity, -kInfinity, 2,    kInfinity, 500,   //
                                             0,          0,          kNan,       kNan, kNan,      2,     //
                                             0,          0,          0,          0,    0,         499,   //
                                             5,          -kInfinity, 1,          3,    1,         -500,  //
                                             3,          0,          2,          2,    2,         2,     //
                                             4,          0,          0,          0,    0,         0});
  const Statistics<T> merged(6);
  device->cross_entropy_merge(
      {.shards = shards, .maximum = merged.maximum, .sum_exp = merged.sum_exp, .target_logit = merged.target_logit});
  CHECK(same_bits(merged.maximum, Array<T>::of({6}, std::vector<T>{5, -kInfinity, 1, 3, kInfinity, 500})));
  CHECK(same_bits(merged.target_logit, Array<T>::of({6}, std::vector<T>{4, 0, 0, 0, 0, 499})));
  CHECK(merged.sum_exp[0] == 3);
  CHECK(merged.sum_exp[1] == 0);
  for (const int64_t t : {2, 3, 4}) CHECK(std::isnan(merged.sum_exp[t]));
  CHECK(merged.sum_exp[5] == 2);
}

TEMPLATE_TEST_CASE("extreme logits neither overflow nor poison their row", "[quick][ops][loss]", float, double) {
  using T = TestType;
  const auto device = make_cpu_device(1);
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  const auto targets = targets_of({0, 1});
  const auto logits = Array<T>::of({2, 3}, std::vector<T>{T(1e4), T(-1e4), -kInfinity, T(-3e4), T(-3e4), -kInfinity});
  CHECK(loss_of(*device, logits, targets, 3) == Approx(std::log(2.0)).epsilon(1e-6));
  CHECK(loss_of(*device, logits, targets_of({1, -1}), 3) == Approx(2e4));

  const Statistics<T> statistics(2);
  auto gradient = logits;
  device->cross_entropy_statistics(statistics_op(logits, targets, 0, 3, statistics));
  device->cross_entropy_gradient({.logits = gradient,
                                  .targets = targets,
                                  .vocabulary_start = 0,
                                  .valid = 3,
                                  .maximum = statistics.maximum,
                                  .sum_exp = statistics.sum_exp,
                                  .scale = 1});
  const auto expected = Array<double>::of({2, 3}, std::vector<double>{0, 0, 0, 0.5, -0.5, 0});
  CHECK(difference(gradient, expected) < 1e-6);

  // A shard of nothing but -inf has no weight, and NaN is never hidden.
  const auto nothing = Array<T>::of({2, 1}, std::vector<T>{-kInfinity, std::numeric_limits<T>::quiet_NaN()});
  device->cross_entropy_statistics(statistics_op(nothing, targets, 7, 1, statistics));
  CHECK(statistics.maximum[0] == -kInfinity);
  CHECK(statistics.sum_exp[0] == 0);
  CHECK(std::isnan(statistics.sum_exp[1]));
}
