// The router against plain loops, its way back against finite differences.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "lib/device/device.h"
#include "tests/support/arrays.h"
#include "tests/support/finite_difference.h"

using namespace quintet;
using namespace quintet::device;
using namespace quintet::testing;

namespace {

constexpr int64_t kLength = 4, kFirstOrdinal = 6;  // of sequences

// Rows of the sequences 6 and 7, 8 and so on, neither all of a sequence nor in order, as a rank may hold them.
template <typename T>
struct Router {
  int64_t rows, experts, top_k;
  bool normalize = false, round_robin = false;
  double balance_scale = 0, z_scale = 0;
  Array<T> logits, bias, probabilities, weights, log_sum_exp, loads;
  Array<int32_t> chosen;
  Array<int64_t> identities;
  bool has_bias = false;

  Router(int64_t row_count, int64_t expert_count, int64_t choices, uint64_t seed = 1)
      : rows(row_count),
        experts(expert_count),
        top_k(choices),
        logits(Array<T>::random({rows, experts}, seed)),
        bias(Array<T>::random({experts}, seed + 1, 0.2)),
        probabilities({rows, experts}),
        weights({rows, top_k}),
        log_sum_exp({rows}),
        loads({rows / kLength + 2, experts}),
        chosen({rows, top_k}),
        identities({rows}) {
    for (int64_t t = 0; t < rows; ++t) identities[t] = kFirstOrdinal * kLength + (rows - t);
    for (int64_t i = 0; i < loads.size(); ++i) loads[i] = static_cast<T>(i * 5 % 7);
  }

  RouterRows rows_of() const {
    return {.identities = identities, .sequence_length = kLength, .first_ordinal = kFirstOrdinal};
  }
  int64_t sequence(int64_t row) const { return identities[row] / kLength - kFirstOrdinal; }

  void forward(Device& device) {
    device.router_forward({.logits = logits,
                           .selection_bias = has_bias ? bias.tensor() : Tensor(),
                           .round_robin = round_robin,
                           .normalize = normalize,
                           .rows = rows_of(),
                           .probabilities = probabilities,
                           .experts = chosen,
                           .weights = weights,
                           .log_sum_exp = log_sum_exp});
  }
  RouterLosses losses() const {
    return {.probabilities = probabilities, .loads = loads, .log_sum_exp = log_sum_exp, .rows = rows_of()};
  }
  Array<T> backward(Device& device, const Array<T>& d_weights) {
    auto d_logits = Array<T>::random({rows, experts}, 99);  // written over
    device.router_backward({.losses = losses(),
                            .balance_scale = balance_scale,
                            .z_scale = z_scale,
                            .normalize = normalize,
                            .experts = chosen,
                            .weights = weights,
                            .d_weights = d_weights,
                            .d_logits = d_logits});
    return d_logits;
  }
};

// What the header promises, in fp64 from the same logits; choices by a full sort.
template <typename T>
void require_plain(const Router<T>& router) {
  for (int64_t t = 0; t < router.rows; ++t) {
    const auto logit = [&](int64_t e) { return static_cast<double>(router.logits[t * router.experts + e]); };
    double sum = 0;
    for (int64_t e = 0; e < router.experts; ++e) sum += std::exp(logit(e));
    REQUIRE(static_cast<double>(router.log_sum_exp[t]) == Approx(std::log(sum)).epsilon(kRounding<T>).margin(1e-6));
    std::vector<double> probability(static_cast<size_t>(router.experts));
    for (int64_t e = 0; e < router.experts; ++e) {
      probability[static_cast<size_t>(e)] = std::exp(logit(e)) / sum;
      REQUIRE(static_cast<double>(router.probabilities[t * router.experts + e]) ==
              Approx(probability[static_cast<size_t>(e)]).epsilon(kRounding<T>));
    }
    std::vector<int32_t> order(static_cast<size_t>(router.experts));
    std::iota(order.begin(), order.end(), 0);
    if (router.round_robin) {
      const int64_t position = router.identities[t] % kLength;
      for (int64_t j = 0; j < router.top_k; ++j)
        order[static_cast<size_t>(j)] = static_cast<int32_t>((position * router.top_k + j) % router.experts);
    } else {
      // From the router's own probabilities, so that a rounding of the exponential decides nothing.
      const auto score = [&](int32_t e) {
        const T own = router.probabilities[t * router.experts + e];
        return router.has_bias ? own + router.bias[e] : own;
      };
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return score(a) > score(b); });
    }
    double chosen_sum = 0;
    for (int64_t j = 0; j < router.top_k; ++j)
      chosen_sum += probability[static_cast<size_t>(order[static_cast<size_t>(j)])];
    for (int64_t j = 0; j < router.top_k; ++j) {
      const int32_t expert = order[static_cast<size_t>(j)];
      REQUIRE(router.chosen[t * router.top_k + j] == expert);
      REQUIRE(
          static_cast<double>(router.weights[t * router.top_k + j]) ==
          Approx(probability[static_cast<size_t>(expert)] / (router.normalize ? chosen_sum : 1)).epsilon(kRounding<T>));
    }
  }
}

}  // namespace

TEMPLATE_TEST_CASE("a router chooses and weighs as a plain loop does", "[quick][ops][moe]", float, double) {
  using T = TestType;
  for (const int threads : {1, 3}) {
    const auto device = make_cpu_device(threads);
    for (const auto& [rows, experts, top_k] :
         {std::array<int64_t, 3>{1, 1, 1}, {7, 8, 1}, {33, 8, 2}, {13, 5, 5}, {1200, 64, 6}})
      for (const bool normalize : {false, true})
        for (const bool round_robin : {false, true})
          for (const bool has_bias : {false, true}) {
            Router<T> router(rows, experts, top_k);
            router.normalize = normalize;
            router.round_robin = round_robin;
            router.has_bias = has_bias;
            router.forward(*device);
            require_plain(router);
          }
  }
}

TEST_CASE("equal experts are chosen in ascending order", "[quick][ops][moe]") {
  const auto device = make_cpu_device(1);
  Router<float> router(3, 6, 4);
  const std::vector<float> logits = {1, 1, 1, 1, 1, 1, 0, 2, 1, 2, 1, 2, -3, -3, 5, -3, 5, -3};
  router.logits = Array<float>::of({3, 6}, logits);
  router.forward(*device);
  const std::vector<int32_t> expected = {0, 1, 2, 3, 1, 3, 5, 2, 2, 4, 0, 1};
  REQUIRE(std::equal(expected.begin(), expected.end(), router.chosen.data()));
}

TEST_CASE("a selection bias chooses other experts and leaves their weights", "[quick][ops][moe]") {
  const auto device = make_cpu_device(1);
  Router<double> router(1, 3, 1);
  router.logits = Array<double>::of({1, 3}, std::vector<double>{std::log(6.0), std::log(3.0), 0.0});
  router.bias = Array<double>::of({3}, std::vector<double>{0, 0, 0.6});
  router.forward(*device);
  REQUIRE(router.chosen[0] == 0);
  router.has_bias = true;
  router.forward(*device);
  REQUIRE(router.chosen[0] == 2);  // 0.1 + 0.6 against 0.6 and 0.3
  REQUIRE(router.weights[0] == Approx(0.1).epsilon(1e-14));
}

TEST_CASE("logits beyond the exponential's range keep their order and their sum", "[quick][ops][moe]") {
  const auto device = make_cpu_device(1);
  Router<float> router(1, 4, 2);
  router.normalize = true;
  router.logits = Array<float>::of({1, 4}, std::vector<float>{-1000, 900, 901, -900});
  router.forward(*device);
  REQUIRE(router.chosen[0] == 2);
  REQUIRE(router.chosen[1] == 1);
  REQUIRE(router.weights[0] + router.weights[1] == Approx(1).epsilon(1e-6));
  REQUIRE(router.log_sum_exp[0] == Approx(901 + std::log1p(std::exp(-1.0))).epsilon(1e-6));
}

TEST_CASE("experts chosen stay experts where logits are not finite", "[quick][ops][moe]") {
  const auto device = make_cpu_device(1);
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();
  for (const std::vector<float>& logits :
       {std::vector<float>{kNaN, 1, 2, 3}, {1, 2, 3, kNaN}, {kInfinity, 1, kInfinity, 3}, {kNaN, kNaN, kNaN, kNaN}}) {
    Router<float> router(1, 4, 3);
    router.logits = Array<float>::of({1, 4}, logits);
    router.forward(*device);
    std::vector<int32_t> chosen(router.chosen.data(), router.chosen.data() + 3);
    std::sort(chosen.begin(), chosen.end());
    REQUIRE(chosen.front() >= 0);
    REQUIRE(chosen.back() < 4);
    REQUIRE(std::adjacent_find(chosen.begin(), chosen.end()) == chosen.end());
  }
}

TEMPLATE_TEST_CASE("a router's losses are sums over its rows", "[quick][ops][moe]", float, double) {
  const auto device = make_cpu_device(2);
  Router<TestType> router(11, 5, 2);
  router.forward(*device);
  ExactSum balance, z;
  balance.add(3);  // both are added to
  z.add(5);
  device->router_losses(router.losses(), balance, z);
  double expected_balance = 3, expected_z = 5;
  for (int64_t t = 0; t < 11; ++t) {
    expected_z += std::pow(static_cast<double>(router.log_sum_exp[t]), 2);
    for (int64_t e = 0; e < 5; ++e)
      expected_balance += static_cast<double>(router.probabilities[t * 5 + e]) *
                          static_cast<double>(router.loads[router.sequence(t) * 5 + e]);
  }
  REQUIRE(balance.value() == Approx(expected_balance).epsilon(1e-14));
  REQUIRE(z.value() == Approx(expected_z).epsilon(1e-14));
}

TEST_CASE("a router's gradient is that of finite differences, with both losses", "[quick][ops][moe]") {
  const auto device = make_cpu_device(2);
  for (const auto& [experts, top_k] : {std::array<int64_t, 2>{4, 1}, {5, 2}, {3, 3}, {1, 1}})
    for (const bool normalize : {false, true})
      for (const bool round_robin : {false, true})
        for (const auto& [balance_scale, z_scale] : {std::array<double, 2>{0, 0}, {0.3, 0}, {0, 0.2}, {0.3, 0.2}}) {
          Router<double> router(9, experts, top_k);
          router.normalize = normalize;
          router.round_robin = round_robin;
          router.has_bias = true;
          router.balance_scale = balance_scale;
          router.z_scale = z_scale;
          const auto d_weights = Array<double>::random({9, top_k}, 5);
          router.forward(*device);
          const auto gradient = router.backward(*device, d_weights);
          const auto objective = [&] {
            router.forward(*device);
            ExactSum balance, z;
            device->router_losses(router.losses(), balance, z);
            return dot(router.weights, d_weights) + router.balance_scale * balance.value() + router.z_scale * z.value();
          };
          CAPTURE(experts, top_k, normalize, round_robin, balance_scale, z_scale);
          CHECK(gradient_error(router.logits.span(), gradient.span(), objective) < 1e-8);
        }
}

TEST_CASE("a router's gradient in fp32 is that in fp64, rounded", "[quick][ops][moe]") {
  const auto device = make_cpu_device(2);
  for (const bool normalize : {false, true}) {
    Router<float> single(21, 8, 2);
    Router<double> exact(21, 8, 2);
    for (int64_t i = 0; i < single.logits.size(); ++i) exact.logits[i] = static_cast<double>(single.logits[i]);
    const auto d_weights = Array<float>::random({21, 2}, 5);
    Array<double> d_weights_exact({21, 2});
    for (int64_t i = 0; i < d_weights.size(); ++i) d_weights_exact[i] = static_cast<double>(d_weights[i]);
    const auto prepare = [&](auto& router) {
      router.normalize = normalize;
      router.balance_scale = 0.1;
      router.z_scale = 0.1;
      router.forward(*device);
    };
    prepare(single);
    prepare(exact);
    CHECK(difference(single.backward(*device, d_weights), exact.backward(*device, d_weights_exact)) < kRounding<float>);
  }
}

TEST_CASE("a router without rows does nothing", "[quick][ops][moe]") {
  const auto device = make_cpu_device(2);
  Router<float> router(0, 4, 2);
  router.forward(*device);
  ExactSum balance, z;
  device->router_losses(router.losses(), balance, z);
  CHECK(router.backward(*device, Array<float>({0, 2})).size() == 0);
  CHECK(balance.value() == 0);
  CHECK(z.value() == 0);
}

TEST_CASE("more choices than experts and shapes that do not fit are refused", "[quick][ops][moe]") {
  const auto device = make_cpu_device(1);
  Router<float> greedy(2, 2, 3);
  CHECK_THROWS_AS(greedy.forward(*device), CheckFailure);
  Router<float> short_of_rows(2, 4, 2);
  short_of_rows.identities = Array<int64_t>({2});
  CHECK_NOTHROW(short_of_rows.forward(*device));
  RouterForward op = {.logits = short_of_rows.logits,
                      .selection_bias = Tensor(),
                      .rows = short_of_rows.rows_of(),
                      .probabilities = short_of_rows.probabilities,
                      .experts = short_of_rows.chosen,
                      .weights = short_of_rows.weights,
                      .log_sum_exp = short_of_rows.log_sum_exp};
  const Array<int64_t> one_identity({1});
  op.rows.identities = one_identity;
  CHECK_THROWS_AS(device->router_forward(op), CheckFailure);
  op.rows = short_of_rows.rows_of();
  const Array<float> three_biases({3});
  op.selection_bias = three_biases;
  CHECK_THROWS_AS(device->router_forward(op), CheckFailure);
}
