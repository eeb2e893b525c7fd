// The hand-written backward of every layer against finite differences of the objective, in fp64, for each family of
// shapes.
#include <cmath>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "lib/base/random.h"
#include "lib/comm/communicator.h"
#include "lib/pipeline/engine.h"
#include "tests/support/training_run.h"

namespace quintet::testing {
namespace {

void require_gradients_of_differences(const std::vector<std::string>& shape) {
  const config::Config config =
      tiny_config(with(shape, {"model.layers=2", "model.hidden_size=24", "model.seq_length=6", "model.init_std=0.3",
                               "model.vocab_size=300", "train.global_batch_size=2"}));
  const auto check = [&](comm::Communicator& communicator) {
    communicator.set_mesh(Mesh(config.mesh.sizes(), config.mesh.order));
    const auto device = device::make_cpu_device(1);
    pipeline::Engine engine(config, communicator, *device);
    const auto load = [&](int64_t microbatch, data::Batch& batch) {
      batch.size = 1;
      batch.sequence_length = 6;
      batch.counted = 5;
      batch.tokens = {3, 250, 3, 7, 11, 99};
      batch.targets = {250, 3, 7, data::kNotCounted, 99, 255};
      batch.positions = {0, 1, 2, 3, 4, 5};
      batch.rows.clear();
      for (int64_t row = 0; row < 6; ++row) batch.rows.push_back(microbatch * 6 + row);
    };
    const pipeline::Gradients found = engine.forward_backward(load);
    REQUIRE(found.counted == 10);
    const auto objective = [&] {
      const pipeline::Gradients there = engine.forward_backward(load);
      if (!config.model.moe) return there.loss;
      REQUIRE(there.routing.digest == found.routing.digest);  // else it jumps
      const model::RoutingFigures routing = model::figures_of(there.routing, config);
      const config::Moe& moe = *config.model.moe;
      const double aux_loss_weight = moe.balance == config::MoeBalance::aux_loss ? moe.aux_loss_weight : 0;
      return there.loss + aux_loss_weight * routing.aux_loss + moe.z_loss_weight * routing.z_loss;
    };
    std::vector<std::vector<double>> gradients;
    for (const parallel::Parameter& parameter : engine.parameters().parameters()) {
      if (!parameter.spec().trained) continue;
      const auto span = parameter.gradient().span<double>();
      gradients.emplace_back(span.begin(), span.end());
    }
    size_t index = 0;
    for (const parallel::Parameter& parameter : engine.parameters().parameters()) {
      if (!parameter.spec().trained) continue;
      const std::vector<double>& gradient = gradients[index++];
      for (uint64_t draw = 0; draw < 3; ++draw) {
        const size_t place = philox(index, draw, 0)[0] % gradient.size();
        double& weight = parameter.weight().span<double>()[place];
        const double before = weight;
        constexpr double kStep = 1e-5;
        weight = before + kStep;
        const double above = objective();
        weight = before - kStep;
        const double below = objective();
        weight = before;
        const double expected = (above - below) / (2 * kStep);
        INFO(parameter.name() << " at " << place << ": " << gradient[place] << " against " << expected);
        REQUIRE(std::abs(gradient[place] - expected) <= 1e-7 * std::max(1.0, std::abs(expected)));
      }
    }
  };
  REQUIRE(comm::run_thread_ranks(1, check) == 0);
}

}  // namespace

TEST_CASE("GPT-2's backward is the derivative of its loss", "[quick][model]") {
  require_gradients_of_differences(gpt2());
}

TEST_CASE("Llama's backward is the derivative of its loss", "[quick][model]") {
  require_gradients_of_differences(with(llama(), {"model.ffn_hidden_size=40"}));
}

TEST_CASE("Qwen3's backward is the derivative of its loss", "[quick][model]") {
  require_gradients_of_differences(with(qwen3(), {"model.head_dim=10", "model.ffn_hidden_size=40"}));
}

TEST_CASE("Qwen2's backward is the derivative of its loss", "[quick][model]") {
  require_gradients_of_differences(with(llama(), {"model.qkv_bias=true", "model.ffn_hidden_size=40"}));
}

TEST_CASE("dropout's backward is the derivative of its loss", "[quick][model]") {
  require_gradients_of_differences(with(gpt2(), {"model.dropout=0.2"}));
}

TEST_CASE("every activation's and position's backward is the derivative of the loss", "[quick][model]") {
  for (const char* activation :
       {"model.activation=gelu_exact", "model.activation=relu_squared", "model.activation=swiglu"})
    require_gradients_of_differences(with(gpt2(), {activation, "model.position=none"}));
  require_gradients_of_differences(
      with(gpt2(), {"model.position=rope", "model.qk_norm=true", "model.tie_embeddings=false"}));
}

TEST_CASE("a mixture of experts' backward is the derivative of its loss and of both of its router's",
          "[quick][model][moe]") {
  const std::vector<std::string> base = with(llama(), {"model.ffn_hidden_size=20", "model.moe.experts=4",
                                                       "model.moe.aux_loss_weight=0.5", "model.moe.z_loss_weight=0.1"});
  require_gradients_of_differences(base);
  require_gradients_of_differences(with(base, {"model.moe.normalize_top_k=false", "model.moe.top_k=1"}));
  require_gradients_of_differences(
      with(base, {"model.moe.routing=round_robin", "model.moe.shared_experts=1", "model.moe.every=2"}));
  require_gradients_of_differences(with(
      gpt2(), {"model.moe.experts=3", "model.moe.capacity_factor=0.7", "model.moe.balance=bias", "model.dropout=0.2"}));
}

}  // namespace quintet::testing
