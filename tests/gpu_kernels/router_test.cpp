#include "kernels/cuda/router.h"

#include <array>
#include <limits>
#include <utility>

#include "kernels/cpu/router.h"
#include "tests/gpu_kernels/twins.h"

using namespace quintet;
using namespace quintet::testing;

namespace {

constexpr double kTolerance = 1e-5;

struct Problem {
  kernels::cuda::RouterShape shape;
  std::vector<float> logits;
  std::vector<int64_t> identities;
  DeviceArray<float> logits_d, probabilities_d, weights_d, log_sum_exp_d;
  DeviceArray<int64_t> identities_d;
  DeviceArray<int32_t> chosen_d;
  std::vector<float> probabilities, weights, log_sum_exp;  // the twin's
  std::vector<int32_t> chosen;

  static constexpr int64_t kLength = 5, kFirstOrdinal = 70;

  Problem(int64_t rows, int64_t experts, int64_t top_k, bool normalize, std::vector<float> values)
      : logits(std::move(values)),
        identities(static_cast<size_t>(rows)),
        logits_d(logits),
        probabilities_d(rows * experts),
        weights_d(rows * top_k),
        log_sum_exp_d(rows),
        identities_d(number_rows()),
        chosen_d(rows * top_k),
        probabilities(logits.size()),
        weights(static_cast<size_t>(rows * top_k)),
        log_sum_exp(static_cast<size_t>(rows)),
        chosen(weights.size()) {
    shape = {.rows = rows,
             .experts = experts,
             .top_k = top_k,
             .normalize = normalize,
             .rows_of = {.identities = identities_d, .sequence_length = kLength, .first_ordinal = kFirstOrdinal}};
  }
  const std::vector<int64_t>& number_rows() {
    for (size_t t = 0; t < identities.size(); ++t) identities[t] = kFirstOrdinal * kLength + static_cast<int64_t>(t);
    return identities;
  }
  int64_t sequences() const { return (shape.rows + kLength - 1) / kLength; }
  kernels::cpu::RouterShape twin() const {
    return {.rows = shape.rows,
            .experts = shape.experts,
            .top_k = shape.top_k,
            .normalize = shape.normalize,
            .rows_of = {identities.data(), kLength, kFirstOrdinal}};
  }
  void forward(const std::vector<float>& bias, bool round_robin, cudaStream_t stream) {
    kernels::cpu::router_forward(twin(), logits.data(), bias.empty() ? nullptr : bias.data(), round_robin,
                                 probabilities.data(), chosen.data(), weights.data(), log_sum_exp.data());
    const DeviceArray<float> bias_d(bias);
    kernels::cuda::router_forward(shape, logits_d, bias.empty() ? nullptr : bias_d.data(), round_robin, probabilities_d,
                                  chosen_d, weights_d, log_sum_exp_d, stream);
    cudaStreamSynchronize(stream);
  }
};

}  // namespace

TEST_CASE("a router chooses as its twin does, and sends back its twin's gradients", "[quick][router]") {
  const Stream stream;
  for (const auto& [rows, experts, top_k] :
       {std::array<int64_t, 3>{1, 1, 1}, {7, 4, 2}, {11, 40, 8}, {9, 64, 3}, {3, 130, 130}}) {
    for (const bool normalize : {false, true}) {
      for (const bool biased : {false, true}) {
        CAPTURE(rows, experts, top_k, normalize, biased);
        Problem p(rows, experts, top_k, normalize, random_values<float>(rows * experts, 1, 2));
        p.forward(biased ? random_values<float>(experts, 2, 0.1) : std::vector<float>{}, false, stream);
        require_near(p.probabilities_d.read(stream), p.probabilities, kTolerance);
        require_near(p.log_sum_exp_d.read(stream), p.log_sum_exp, kTolerance);
        REQUIRE(p.chosen_d.read(stream) == p.chosen);
        require_near(p.weights_d.read(stream), p.weights, kTolerance);

        const auto d_weights = random_values<float>(rows * top_k, 3),
                   loads = random_values<float>(p.sequences() * experts, 4);
        std::vector<float> d_logits(p.logits.size());
        kernels::cpu::router_backward<float>(p.twin(), {.probabilities = p.probabilities.data(),
                                                        .chosen = p.chosen.data(),
                                                        .weights = p.weights.data(),
                                                        .log_sum_exp = p.log_sum_exp.data(),
                                                        .d_weights = d_weights.data(),
                                                        .loads = loads.data(),
                                                        .balance_scale = 0.3,
                                                        .z_scale = 0.7,
                                                        .d_logits = d_logits.data()});
        const DeviceArray<float> d_weights_d(d_weights), loads_d(loads), d_logits_d(rows * experts);
        kernels::cuda::router_backward(p.shape,
                                       {.probabilities = p.probabilities_d,
                                        .chosen = p.chosen_d,
                                        .weights = p.weights_d,
                                        .log_sum_exp = p.log_sum_exp_d,
                                        .d_weights = d_weights_d,
                                        .loads = loads_d,
                                        .balance_scale = 0.3,
                                        .z_scale = 0.7,
                                        .d_logits = d_logits_d},
                                       stream);
        require_near(d_logits_d.read(stream), d_logits, 4 * kTolerance);

        ExactSum balance, z, balance_d, z_d;
        kernels::cpu::router_losses(p.twin(), p.probabilities.data(), loads.data(), p.log_sum_exp.data(), balance, z);
        const DeviceArray<double> of_rows(2 * rows);
        kernels::cuda::router_losses(p.shape, p.probabilities_d, loads_d, p.log_sum_exp_d, of_rows, stream);
        const auto sums = of_rows.read(stream);
        balance_d.add(std::span(sums).first(static_cast<size_t>(rows)));
        z_d.add(std::span(sums).last(static_cast<size_t>(rows)));
        REQUIRE(balance_d.value() == Approx(balance.value()).epsilon(1e-5).margin(1e-5));
        REQUIRE(z_d.value() == Approx(z.value()).epsilon(1e-5));
      }
    }
  }
}

TEST_CASE("a router takes equal and nonsensical scores in ascending order of experts", "[quick][router]") {
  const Stream stream;
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  std::vector<float> logits(5 * 40, 0.5F);
  logits[40 + 3] = nan;
  for (size_t e = 0; e < 40; ++e) logits[80 + e] = -infinity;
  logits[120 + 39] = infinity;
  for (size_t e = 0; e < 40; ++e) logits[160 + e] = e % 7 == 0 ? 1.0F : -infinity;
  Problem p(5, 40, 9, true, logits);
  p.forward({}, false, stream);
  REQUIRE(p.chosen_d.read(stream) == p.chosen);
  for (int32_t j = 0; j < 9; ++j) REQUIRE(p.chosen[static_cast<size_t>(j)] == j);
}

TEST_CASE("a router may deal experts out in turn by position", "[quick][router]") {
  const Stream stream;
  Problem p(12, 6, 4, true, random_values<float>(12 * 6, 1));
  p.forward({}, true, stream);
  REQUIRE(p.chosen_d.read(stream) == p.chosen);
  require_near(p.weights_d.read(stream), p.weights, kTolerance);
}
