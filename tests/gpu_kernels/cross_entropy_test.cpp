#include "kernels/cpu/cross_entropy.h"

#include <limits>

#include "kernels/cuda/cross_entropy.h"
#include "tests/gpu_kernels/twins.h"

using namespace quintet;
using namespace quintet::testing;

namespace {

constexpr double kTolerance = 2e-6;
constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

struct Statistics {
  std::vector<float> maximum, sum_exp, target_logit;
  explicit Statistics(int64_t rows) : maximum(static_cast<size_t>(rows)), sum_exp(maximum), target_logit(maximum) {}
};

// Both sides' arguments for logits [rows, columns] of which `valid` columns count.
template <typename T>
struct Problem {
  int64_t rows, columns, valid, start;
  std::vector<int32_t> targets;
  std::vector<T> logits;
  std::vector<float> wide;
  DeviceArray<int32_t> targets_d;
  DeviceArray<T> logits_d;
  DeviceArray<float> statistics_d;

  Problem(int64_t width, int64_t valid_columns, int64_t first, std::vector<int32_t> of, std::vector<T> values)
      : rows(static_cast<int64_t>(of.size())),
        columns(width),
        valid(valid_columns),
        start(first),
        targets(std::move(of)),
        logits(std::move(values)),
        wide(widened(logits)),
        targets_d(targets),
        logits_d(logits),
        statistics_d(3 * rows) {}

  kernels::cpu::CrossEntropyArgs<float> twin() {
    return {.rows = rows,
            .columns = columns,
            .valid = valid,
            .vocabulary_start = start,
            .targets = targets.data(),
            .logits = wide.data(),
            .threads = 1};
  }
  kernels::cuda::CrossEntropyArgs<T> args() {
    return {.rows = rows,
            .columns = columns,
            .valid = valid,
            .vocabulary_start = start,
            .targets = targets_d,
            .logits = logits_d};
  }
  Statistics expected() {
    Statistics statistics(rows);
    kernels::cpu::cross_entropy_statistics(twin(), statistics.maximum.data(), statistics.sum_exp.data(),
                                           statistics.target_logit.data());
    return statistics;
  }
  Statistics got(cudaStream_t stream) {
    kernels::cuda::cross_entropy_statistics(args(), statistics_d.data(), statistics_d + rows, statistics_d + 2 * rows,
                                            stream);
    const auto values = statistics_d.read(stream);
    Statistics statistics(rows);
    std::copy_n(values.begin(), rows, statistics.maximum.begin());
    std::copy_n(values.begin() + rows, rows, statistics.sum_exp.begin());
    std::copy_n(values.begin() + 2 * rows, rows, statistics.target_logit.begin());
    return statistics;
  }
};

}  // namespace

TEMPLATE_TEST_CASE("cross entropy's statistics and gradient are its twin's, padding unread", "[quick][loss]", float,
                   bfloat16) {
  using T = TestType;
  const Stream stream;
  for (const int64_t columns : {1, 5, 33, 64, 1003, 9000}) {
    const int64_t valid = columns > 2 ? columns - 2 : columns, start = 100;
    auto logits = random_values<T>(5 * columns, 1, 3);
    for (int64_t t = 0; t < 5; ++t) {
      for (int64_t c = valid; c < columns; ++c) logits[static_cast<size_t>(t * columns + c)] = T(kNan);
    }
    const auto last = static_cast<int32_t>(start + valid - 1);
    Problem<T> problem(columns, valid, start, {100, -1, last, last + 1, 99}, logits);
    const Statistics expected = problem.expected(), got = problem.got(stream);
    require_equal(got.maximum, expected.maximum);
    require_near(got.sum_exp, expected.sum_exp, kTolerance);
    require_equal(got.target_logit, expected.target_logit);

    kernels::cpu::cross_entropy_gradient(problem.twin(), expected.maximum.data(), expected.sum_exp.data(), 0.125);
    const DeviceArray<float> maximum(expected.maximum), sum_exp(expected.sum_exp);
    kernels::cuda::cross_entropy_gradient(problem.args(), maximum, sum_exp, 0.125, stream);
    require_near(problem.logits_d.read(stream), problem.wide, kTolerance);
  }
}

TEMPLATE_TEST_CASE("extreme logits neither overflow nor hide NaN", "[quick][loss]", float, bfloat16) {
  using T = TestType;
  const Stream stream;
  std::vector<float> logits = {3e4F, -3e4F, -kInfinity, -3e4F, -3e4F, -kInfinity};
  for (const float value : {-kInfinity, kNan, kInfinity}) logits.insert(logits.end(), 3, value);
  Problem<T> problem(3, 3, 0, {0, 1, 0, 0, 0}, std::vector<T>(logits.begin(), logits.end()));
  const Statistics got = problem.got(stream);
  CHECK(got.sum_exp[0] == 1);
  CHECK(got.sum_exp[1] == 2);
  CHECK(got.maximum[2] == -kInfinity);
  CHECK(got.sum_exp[2] == 0);
  CHECK(std::isnan(got.sum_exp[3]));
  CHECK(std::isnan(got.sum_exp[4]));
}

TEST_CASE("statistics of shards merge to those of the whole, as the twin's do", "[quick][loss]") {
  const Stream stream;
  const int64_t shards = 3, rows = 300;
  auto statistics = random_values<float>(shards * 3 * rows, 1, 5);
  for (int64_t shard = 0; shard < shards; ++shard) {
    for (int64_t t = 0; t < rows; ++t) {
      float& sum = statistics[static_cast<size_t>((shard * 3 + 1) * rows + t)];
      sum = std::abs(sum) + 1;
      if ((t + shard) % 5 != 0) continue;  // a shard without weight
      sum = 0;
      statistics[static_cast<size_t>(shard * 3 * rows + t)] = -kInfinity;
    }
  }
  Statistics expected(rows);
  kernels::cpu::cross_entropy_merge(1, shards, rows, statistics.data(), expected.maximum.data(),
                                    expected.sum_exp.data(), expected.target_logit.data());
  const DeviceArray<float> statistics_d(statistics), maximum(rows), sum_exp(rows), target_logit(rows);
  kernels::cuda::cross_entropy_merge(shards, rows, statistics_d, maximum, sum_exp, target_logit, stream);
  require_equal(maximum.read(stream), expected.maximum);
  require_near(sum_exp.read(stream), expected.sum_exp, kTolerance);
  require_equal(target_logit.read(stream), expected.target_logit);
}
