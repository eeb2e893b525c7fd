#include "lib/model/rope.h"

#include <cmath>

#include <catch2/catch.hpp>

namespace quintet::model {
namespace {

config::Model rotary() {
  config::Model model;
  model.seq_length = 16;
  model.head_dim = 8;
  model.position = config::Position::rope;
  model.rope_theta = 10000;
  return model;
}

}  // namespace

TEST_CASE("rotary angles are position over theta^(2i/D)", "[quick][model]") {
  const auto device = device::make_cpu_device(1);
  device::MemoryLedger ledger;
  const RopeTable table(*device, ledger, rotary(), DType::fp64);
  for (int64_t position = 0; position < 16; ++position)
    for (int64_t i = 0; i < 4; ++i) {
      const double angle = static_cast<double>(position) / std::pow(10000.0, static_cast<double>(i) / 4);
      REQUIRE(table.cosine().as<double>()[position * 4 + i] == Approx(std::cos(angle)).margin(1e-15));
      REQUIRE(table.sine().as<double>()[position * 4 + i] == Approx(std::sin(angle)).margin(1e-15));
    }
}

TEST_CASE("Llama 3 scaling keeps short waves, slows long ones and blends between", "[quick][model]") {
  config::Model model = rotary();
  model.rope_scaling = config::RopeScaling{.kind = config::RopeScalingKind::llama3,
                                           .factor = 8,
                                           .low_freq_factor = 1,
                                           .high_freq_factor = 4,
                                           .original_length = 256};
  const auto device = device::make_cpu_device(1);
  device::MemoryLedger ledger;
  const RopeTable table(*device, ledger, model, DType::fp64);
  const auto frequency = [&](int64_t i) { return std::asin(table.sine().as<double>()[4 + i]); };
  // Wave lengths are 6.3, 63, 628 and 6283 positions; short is below 64, long above 256.
  REQUIRE(frequency(0) == Approx(1.0).margin(1e-12));
  REQUIRE(frequency(1) == Approx(0.1).margin(1e-12));
  REQUIRE(frequency(2) == Approx(0.01 / 8).margin(1e-12));
  REQUIRE(frequency(3) == Approx(0.001 / 8).margin(1e-12));
  model.rope_scaling->original_length = 1024;
  const RopeTable wider(*device, ledger, model, DType::fp64);
  const double blend = (1024 * 0.01 / (2 * M_PI) - 1) / 3;
  REQUIRE(std::asin(wider.sine().as<double>()[4 + 2]) == Approx((1 - blend) * 0.01 / 8 + blend * 0.01).margin(1e-12));
}

}  // namespace quintet::model
