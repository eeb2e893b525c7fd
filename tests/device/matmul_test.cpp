// Products against a plain triple loop. Small integers make every sum exact, so the comparison is bitwise.
#include "kernels/cpu/matmul.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <thread>
#include <tuple>
#include <vector>

#include <catch2/catch.hpp>

namespace quintet::kernels::cpu {
namespace {

template <typename T>
double value_of(T x) {
  return static_cast<double>(widen(x));
}

// Integers in [-4, 4] that look random.
template <typename T>
std::vector<T> integers(int64_t count, uint32_t seed) {
  std::vector<T> values(static_cast<size_t>(count));
  uint32_t state = seed * 2654435761U + 1;
  for (T& value : values) {
    state = state * 1664525U + 1013904223U;
    value = round_to<T>(static_cast<float>(static_cast<int>((state >> 16) % 9U) - 4));
  }
  return values;
}

// The operands of one product with padded leading dimensions.
template <typename T, typename C = T>
struct Problem {
  MatmulArgs<T, C> args;
  std::vector<T> a, b;
  std::vector<C> c;

  Problem(int64_t m, int64_t n, int64_t k, bool transpose_a, bool transpose_b, bool accumulate) {
    args.m = m, args.n = n, args.k = k;
    args.transpose_a = transpose_a, args.transpose_b = transpose_b, args.accumulate = accumulate;
    args.lda = (transpose_a ? m : k) + 3;
    args.ldb = (transpose_b ? k : n) + 1;
    args.ldc = n + 2;
    a = integers<T>((transpose_a ? k : m) * args.lda, 1);
    b = integers<T>((transpose_b ? n : k) * args.ldb, 2);
    c = integers<C>(m * args.ldc, 3);
  }

  std::vector<C> product(int threads) const {
    std::vector<C> result = c;
    MatmulArgs<T, C> call = args;
    call.a = a.data(), call.b = b.data(), call.c = result.data(), call.threads = threads;
    matmul(call);
    return result;
  }

  std::vector<C> expected() const {
    std::vector<C> result = c;
    for (int64_t i = 0; i < args.m; ++i) {
      for (int64_t j = 0; j < args.n; ++j) {
        double sum = args.accumulate ? value_of(c[static_cast<size_t>(i * args.ldc + j)]) : 0;
        for (int64_t l = 0; l < args.k; ++l) {
          const int64_t a_at = args.transpose_a ? l * args.lda + i : i * args.lda + l;
          const int64_t b_at = args.transpose_b ? j * args.ldb + l : l * args.ldb + j;
          sum += value_of(a[static_cast<size_t>(a_at)]) * value_of(b[static_cast<size_t>(b_at)]);
        }
        result[static_cast<size_t>(i * args.ldc + j)] = round_to<C>(sum);
      }
    }
    return result;
  }
};

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// Fractions, so that every order of summation shows.
template <typename T>
std::vector<T> fractions(int64_t count, uint32_t seed) {
  std::vector<T> values = integers<T>(count, seed);
  using A = Arithmetic<T>;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = round_to<T>(std::sin(widen(values[i]) + static_cast<A>(i % 1013) * A{3} / A{8}));
  }
  return values;
}

// A type of operands and one of results.
template <typename T, typename C>
struct Types {
  using Operand = T;
  using Result = C;
};

using Sizes = std::tuple<int64_t, int64_t, int64_t>;

}  // namespace

TEMPLATE_TEST_CASE("matmul is exact on integers for all transpositions, edges and thread counts", "[quick][matmul]",
                   float, double) {
  const auto [m, n, k] = GENERATE(table<int64_t, int64_t, int64_t>(
      {Sizes{1, 1, 1}, Sizes{5, 3, 7}, Sizes{6, 64, 16}, Sizes{32, 64, 64}, Sizes{37, 65, 41}, Sizes{97, 131, 390},
       Sizes{13, 520, 769}, Sizes{200, 17, 3}}));
  const bool transpose_a = GENERATE(false, true), transpose_b = GENERATE(false, true);
  const bool accumulate = GENERATE(false, true);
  const Problem<TestType> problem(m, n, k, transpose_a, transpose_b, accumulate);
  const std::vector<TestType> expected = problem.expected();
  for (const int threads : {1, 2, 3}) {
    INFO(m << " x " << n << " x " << k << ", transposed " << transpose_a << transpose_b << ", threads " << threads);
    REQUIRE(problem.product(threads) == expected);  // what lies between rows of c is compared as well
  }
}

TEMPLATE_PRODUCT_TEST_CASE("products with bf16 round exact sums to nearest, ties to even, once", "[quick][matmul]",
                           Types, ((bfloat16, bfloat16), (bfloat16, float), (float, bfloat16), (double, bfloat16))) {
  using T = typename TestType::Operand;
  using C = typename TestType::Result;
  const auto [m, n, k] = GENERATE(table<int64_t, int64_t, int64_t>(
      {Sizes{1, 1, 1}, Sizes{5, 3, 7}, Sizes{6, 64, 16}, Sizes{37, 65, 41}, Sizes{97, 131, 390}, Sizes{13, 520, 769},
       Sizes{261, 3, 5}, Sizes{3, 1030, 2}, Sizes{2, 5, 2051}, Sizes{3, 5, 0}}));
  const bool transpose_a = GENERATE(false, true), transpose_b = GENERATE(false, true);
  const bool accumulate = GENERATE(false, true);
  const Problem<T, C> problem(m, n, k, transpose_a, transpose_b, accumulate);
  const std::vector<C> expected = problem.expected();
  for (const int threads : {1, 3}) {
    INFO(m << " x " << n << " x " << k << ", transposed " << transpose_a << transpose_b << ", threads " << threads);
    REQUIRE(same_bits(problem.product(threads), expected));
  }
}

TEMPLATE_TEST_CASE("a bias joins the sums before they are rounded", "[quick][matmul]", float, double, bfloat16) {
  using T = TestType;
  const auto [m, n, k] = GENERATE(
      table<int64_t, int64_t, int64_t>({Sizes{1, 1, 1}, Sizes{37, 65, 41}, Sizes{97, 131, 390}, Sizes{3, 5, 0}}));
  const std::vector<T> a = integers<T>(m * k, 1), b = integers<T>(k * n, 2), bias = integers<T>(n, 4);
  std::vector<T> expected(static_cast<size_t>(m * n)), result(expected.size());
  for (int64_t i = 0; i < m * n; ++i) {
    double sum = value_of(bias[static_cast<size_t>(i % n)]);
    for (int64_t l = 0; l < k; ++l) {
      sum += value_of(a[static_cast<size_t>(i / n * k + l)]) * value_of(b[static_cast<size_t>(l * n + i % n)]);
    }
    expected[static_cast<size_t>(i)] = round_to<T>(sum);
  }
  MatmulArgs<T> args;
  args.m = m, args.n = n, args.k = k, args.lda = k, args.ldb = n, args.ldc = n, args.threads = 2;
  args.a = a.data(), args.b = b.data(), args.bias = bias.data(), args.c = result.data();
  matmul(args);
  REQUIRE(same_bits(result, expected));
}

TEMPLATE_TEST_CASE("matmul over no terms clears or keeps", "[quick][matmul]", float, double) {
  const bool accumulate = GENERATE(false, true);
  const Problem<TestType> problem(3, 5, 0, false, false, accumulate);
  REQUIRE(problem.product(2) == problem.expected());
}

TEMPLATE_TEST_CASE("matmul reads nothing it was not given, and overwrites NaN", "[quick][matmul]", float, double) {
  Problem<TestType> problem(7, 19, 21, false, true, false);
  std::fill(problem.c.begin(), problem.c.end(), std::numeric_limits<TestType>::quiet_NaN());
  const std::vector<TestType> result = problem.product(1), expected = problem.expected();
  for (int64_t i = 0; i < 7; ++i) {
    for (int64_t j = 0; j < 19; ++j) {
      REQUIRE(result[static_cast<size_t>(i * 21 + j)] == expected[static_cast<size_t>(i * 21 + j)]);
    }
    REQUIRE(std::isnan(result[static_cast<size_t>(i * 21 + 19)]));
  }
}

TEMPLATE_TEST_CASE("matmul gives the same bits at any address and beside other ranks", "[quick][matmul]", float, double,
                   bfloat16) {
  constexpr int64_t kM = 96, kN = 200, kK = 500;
  const bool transpose_a = GENERATE(false, true), transpose_b = GENERATE(false, true);
  const std::vector<TestType> a = fractions<TestType>(kM * kK, 4), b = fractions<TestType>(kN * kK, 5);

  // Every operand begins `shift` elements off an allocation.
  auto product = [&](size_t shift, int threads) {
    std::vector<TestType> a_moved(a.size() + shift), b_moved(b.size() + shift), c(kM * kN + shift);
    std::copy(a.begin(), a.end(), a_moved.begin() + static_cast<std::ptrdiff_t>(shift));
    std::copy(b.begin(), b.end(), b_moved.begin() + static_cast<std::ptrdiff_t>(shift));
    MatmulArgs<TestType> args;
    args.m = kM, args.n = kN, args.k = kK;
    args.a = a_moved.data() + shift, args.lda = transpose_a ? kM : kK, args.transpose_a = transpose_a;
    args.b = b_moved.data() + shift, args.ldb = transpose_b ? kK : kN, args.transpose_b = transpose_b;
    args.c = c.data() + shift, args.ldc = kN, args.threads = threads;
    matmul(args);
    c.erase(c.begin(), c.begin() + static_cast<std::ptrdiff_t>(shift));
    return c;
  };

  const int threads = GENERATE(1, 2, 3);
  const std::vector<TestType> alone = product(0, threads);
  if (std::is_same_v<TestType, double>)
    REQUIRE(same_bits(alone, product(0, 1)));  // our own threads divide c, never a sum
  for (const size_t shift : {1, 2, 3, 5}) REQUIRE(same_bits(product(shift, threads), alone));

  std::vector<int> equal(4, 0);
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < equal.size(); ++rank) {
    ranks.emplace_back([&, rank] {
      bool all = true;
      for (int repetition = 0; repetition < 3; ++repetition) all = all && same_bits(product(rank, threads), alone);
      equal[rank] = all ? 1 : 0;
    });
  }
  for (std::thread& rank : ranks) rank.join();
  REQUIRE(equal == std::vector<int>(equal.size(), 1));
}

}  // namespace quintet::kernels::cpu
