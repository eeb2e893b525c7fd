#include "tests/support/training_run.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <set>

#include <catch2/catch.hpp>

#include <fmt/core.h>

#include "lib/base/random.h"
#include "lib/checkpoint/whole_parameters.h"
#include "lib/comm/communicator.h"
#include "lib/config/load.h"
#include "lib/parallel/element_runs.h"
#include "lib/training/session.h"
#include "tests/support/temporary_folder.h"

namespace quintet::testing {
namespace {

constexpr const char* kTinyModel = R"(
run: {name: test}
model: {seq_length: 32, layers: 4, hidden_size: 64, heads: 4}
train: {steps: 5, global_batch_size: 8, eval_steps: 2}
optimizer: {learning_rate: 1.0e-3}
schedule: {decay: constant}
device: {threads: 1}
precision: {compute: fp64}
data: {train: text.txt, validation: 0.1}
fault: {watchdog_seconds: 120}
)";

// Words drawn by a fixed formula: enough order for a loss that falls.
std::string corpus() {
  constexpr const char* kWords[] = {"the ", "ring ", "of ", "ranks ", "adds ", "what ", "each ", "one ", "holds. "};
  std::string text;
  for (uint64_t i = 0; text.size() < 40000; ++i) text += kWords[philox(7, i, 0)[0] % 9];
  return text;
}

bool starts_with(const std::string& text, std::string_view start) { return text.compare(0, start.size(), start) == 0; }

double as_double(double value) { return value; }
double as_double(bfloat16 value) { return static_cast<float>(value); }

// The whole tensors, on rank 0; what is not trained has no gradient.
NamedValues copy_out(pipeline::Engine& engine, checkpoint::WholeParameters::Values kind) {
  checkpoint::WholeParameters whole(engine.model_parameters(), engine.communicator(), engine.device(),
                                    engine.parameters(), engine.optimizer());
  NamedValues values;
  for (const pipeline::ModelParameter& parameter : engine.model_parameters()) {
    if (kind == checkpoint::WholeParameters::Values::gradients && !parameter.spec.trained) continue;
    const Tensor tensor = whole.gather(parameter.spec.name, kind);
    if (!tensor) continue;
    visit_storage_type(tensor.dtype(), [&]<typename T>() {
      const std::span<T> span = tensor.span<T>();
      std::vector<double>& copied = values[parameter.spec.name];
      for (const T value : span) copied.push_back(as_double(value));
    });
  }
  return values;
}

// RankView::strays of the engine's rank.
int64_t count_strays(pipeline::Engine& engine, const NamedValues& weights) {
  const parallel::ParameterStore& store = engine.parameters();
  int64_t strays = 0;
  std::set<std::string> held;
  device::Buffer gathered;
  for (const parallel::Parameter& parameter : store.parameters()) {
    held.insert(parameter.name());
    const std::vector<double>& whole = weights.at(parameter.name());
    const Tensor weight = engine.optimizer().whole(parameter, optimizer::ZeroOptimizer::Values::weights, gathered);
    const DType dtype = weight.dtype();
    visit_storage_type(dtype, [&]<typename T>() {
      std::vector<T> own(static_cast<size_t>(parameter.elements()));
      engine.device().copy(weight, Tensor(own.data(), dtype, parameter.shape()));
      std::vector<double> expected(own.size(), 0);
      parallel::for_each_run(parameter.spec(), store.mesh(), store.coordinate(), [&](const parallel::ElementRun& run) {
        std::copy_n(whole.begin() + run.whole, run.count, expected.begin() + run.shard);
      });
      for (size_t i = 0; i < own.size(); ++i) {
        const double value = as_double(own[i]);
        if (std::memcmp(&value, &expected[i], sizeof value) != 0) ++strays;
      }
    });
  }
  const Mesh& mesh = store.mesh();
  for (const pipeline::ModelParameter& parameter : engine.model_parameters()) {
    if (!parameter.spec.is_expert() || parameter.pipeline_rank != store.coordinate()[Axis::pp]) continue;
    const parallel::Placement& expert = parameter.spec.along[Axis::ep];
    const int64_t holder = expert.index * mesh.size(Axis::ep) / expert.count;
    if ((held.count(parameter.spec.name) > 0) != (holder == store.coordinate()[Axis::ep]))
      strays += parameter.spec.shape.elements();
  }
  return strays;
}

void train_rank(const config::Config& config, comm::Communicator& communicator, Run& run) {
  training::Session session(config, communicator);
  pipeline::Engine& engine = session.engine();
  const bool speaks = session.is_first_rank();
  RankView& seen = run.ranks[static_cast<size_t>(engine.rank())];
  seen.coordinate = engine.parameters().coordinate();
  using Values = checkpoint::WholeParameters::Values;
  const auto keep = [&](NamedValues& values, Values kind) {
    NamedValues found = copy_out(engine, kind);
    if (speaks) values = std::move(found);
  };
  keep(run.initial_weights, Values::weights);
  for (int64_t k = 1; k <= config.train.steps; ++k) {
    const training::StepResult result = session.step(k, [&] {
      for (const data::Batch& batch : engine.batches())
        for (int64_t sample = 0; sample < batch.size; ++sample)
          seen.ordinals.push_back(batch.rows[static_cast<size_t>(sample * engine.chunks().front().length)] /
                                  batch.sequence_length);
      if (k == 1) keep(run.gradients, Values::gradients);
    });
    seen.held_bytes.push_back(engine.ledger().held_bytes());
    if (!speaks) continue;
    const pipeline::Gradients& found = result.gradients;
    run.losses.push_back(found.loss);
    run.norms.push_back(found.norm);
    run.counted.push_back(found.counted);
    if (config.model.moe)
      run.routing.push_back({.figures = model::figures_of(found.routing, config),
                             .loads = found.routing.loads,
                             .dropped = found.routing.dropped,
                             .digest = found.routing.digest});
    run.comm_bytes.push_back(result.traffic.bytes);
    run.operations.push_back(result.traffic.operations);
  }
  seen.peak_bytes = engine.ledger().peak_bytes();
  seen.peak_by_owner = engine.ledger().peak_by_owner();
  const double validation = session.evaluate();
  keep(run.weights, Values::weights);
  if (speaks) run.validation_loss = validation;
  communicator.world().barrier();  // run.weights is there
  seen.strays = count_strays(engine, run.weights);
}

bool close(double a, double b, double tol) { return std::abs(a - b) <= tol * std::abs(b); }

void require_equal_routing(const StepRouting& routing, const StepRouting& reference, double tol) {
  INFO("aux loss " << routing.figures.aux_loss << " against " << reference.figures.aux_loss);
  INFO("z loss " << routing.figures.z_loss << " against " << reference.figures.z_loss);
  REQUIRE(close(routing.figures.aux_loss, reference.figures.aux_loss, tol));
  REQUIRE(close(routing.figures.z_loss, reference.figures.z_loss, tol));
  REQUIRE(routing.figures.max_expert_load == reference.figures.max_expert_load);
  REQUIRE(routing.loads == reference.loads);
  REQUIRE(routing.dropped == reference.dropped);
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

double norm_of(const std::vector<double>& values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares);
}

// |a - b|, over the norm of b or, where that is smaller, of a gradient of ordinary size.
double relative_distance(const std::vector<double>& a, const std::vector<double>& b, double floor) {
  std::vector<double> difference(a.size());
  for (size_t i = 0; i < a.size(); ++i) difference[i] = a[i] - b[i];
  return norm_of(difference) / std::max(norm_of(b), floor * std::sqrt(static_cast<double>(b.size())));
}

}  // namespace

std::string Sizes::text() const { return fmt::format("dp {}, tp {}, pp {}, ep {}, cp {}", dp, tp, pp, ep, cp); }

std::vector<std::string> Sizes::overrides() const {
  return {fmt::format("mesh.dp={}", dp), fmt::format("mesh.tp={}", tp), fmt::format("mesh.pp={}", pp),
          fmt::format("mesh.ep={}", ep), fmt::format("mesh.cp={}", cp)};
}

config::Config tiny_config(const std::vector<std::string>& overrides, int64_t ranks) {
  return config::load_from_string(kTinyModel, "tiny.yaml", overrides, ranks);
}

Run train(const std::vector<std::string>& overrides, int64_t ranks) {
  const TemporaryFolder folder;
  return train_on(folder.write("text.txt", corpus()), overrides, ranks);
}

Run train(const std::vector<std::string>& overrides, const Sizes& sizes) {
  INFO(sizes.text());
  return train(with(overrides, sizes.overrides()), sizes.ranks());
}

Run train_on(const std::string& text_file, const std::vector<std::string>& overrides, int64_t ranks) {
  const config::Config config = tiny_config(with(overrides, {"data.train=" + text_file}), ranks);
  Run run;
  run.ranks.resize(static_cast<size_t>(ranks));
  const int code =
      comm::run_thread_ranks(ranks, [&](comm::Communicator& communicator) { train_rank(config, communicator, run); });
  REQUIRE(code == 0);
  return run;
}

const Run& References::of(const std::vector<std::string>& overrides) {
  std::vector<std::string> plain;
  std::copy_if(overrides.begin(), overrides.end(), std::back_inserter(plain), [](const std::string& one) {
    return !starts_with(one, "mesh.") && !starts_with(one, "parallel.") && !starts_with(one, "train.micro_batch_size=");
  });
  const auto found = runs_.find(plain);
  return found != runs_.end() ? found->second : runs_.emplace(plain, train(plain)).first->second;
}

size_t steps_routed_alike(const Run& run, const Run& reference) {
  REQUIRE(run.routing.size() == reference.routing.size());
  for (size_t i = 0; i < run.routing.size(); ++i)
    if (run.routing[i].digest != reference.routing[i].digest) return i;
  return run.losses.size();
}

void require_equal_training(const Run& run, const Run& reference, double tol) {
  for (const Run* one : {&run, &reference})
    for (size_t rank = 0; rank < one->ranks.size(); ++rank) {
      INFO("rank " << rank);
      REQUIRE(one->ranks[rank].strays == 0);
    }
  REQUIRE(run.losses.size() == reference.losses.size());
  const size_t steps = steps_routed_alike(run, reference);
  if (tol < 1e-8) REQUIRE(steps == run.losses.size());
  for (size_t i = 0; i < steps; ++i) {
    INFO("step " << i + 1);
    INFO("loss " << run.losses[i] << " against " << reference.losses[i]);
    INFO("norm " << run.norms[i] << " against " << reference.norms[i]);
    REQUIRE(close(run.losses[i], reference.losses[i], tol));
    REQUIRE(close(run.norms[i], reference.norms[i], tol));
    REQUIRE(run.counted[i] == reference.counted[i]);
    if (!run.routing.empty()) require_equal_routing(run.routing[i], reference.routing[i], tol);
  }
  if (steps == 0) return;
  double elements = 0;
  for (const auto& [name, values] : reference.gradients) elements += static_cast<double>(values.size());
  const double floor = reference.norms.front() / std::sqrt(elements);
  REQUIRE(run.gradients.size() == reference.gradients.size());
  for (const auto& [name, expected] : reference.gradients) {
    const std::vector<double>& values = run.gradients.at(name);
    REQUIRE(values.size() == expected.size());
    double largest = floor, worst = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::abs(expected[i]));
      const double error = std::abs(values[i] - expected[i]);
      if (!(error <= worst)) worst = error;  // NaN is worst
    }
    INFO("gradient of " << name << " differs by " << worst << ", largest value " << largest);
    REQUIRE(worst <= tol * largest);
  }
  INFO("validation loss " << run.validation_loss << " against " << reference.validation_loss);
  // What validation's routers choose has no digest: in fp32 a few tokens may go to other experts.
  const double flips = run.routing.empty() || tol < 1e-8 ? 1 : 100;
  REQUIRE(close(run.validation_loss, reference.validation_loss, flips * tol));
}

void require_within_roundings(const Run& run, const Run& one, const Run& exact) {
  constexpr double kRounding = 1.0 / 256;
  double elements = 0;
  for (const auto& [name, values] : one.gradients) elements += static_cast<double>(values.size());
  const double floor = one.norms.front() / std::sqrt(elements);
  for (const auto& [name, values] : one.gradients) {
    const double own = relative_distance(values, exact.gradients.at(name), floor);
    const double other = relative_distance(run.gradients.at(name), values, floor);
    INFO(name << ": layouts differ by " << other << ", bf16 and fp32 by " << own);
    REQUIRE(other <= std::max(2 * own, kRounding / 2));
  }
  for (size_t step = 0; step < one.losses.size(); ++step) {
    REQUIRE(std::abs(run.losses[step] - one.losses[step]) <= kRounding * one.losses[step]);
    REQUIRE(std::abs(run.norms[step] - one.norms[step]) <= 4 * kRounding * one.norms[step]);
  }
}

void require_same_bits(const Run& run, const Run& reference) {
  REQUIRE(same_bits(run.losses, reference.losses));
  REQUIRE(same_bits(run.norms, reference.norms));
  REQUIRE(same_bits({run.validation_loss}, {reference.validation_loss}));
  REQUIRE(steps_routed_alike(run, reference) == run.losses.size());
  for (size_t i = 0; i < run.routing.size(); ++i) require_equal_routing(run.routing[i], reference.routing[i], 0);
  for (const NamedValues Run::*values : {&Run::initial_weights, &Run::gradients, &Run::weights})
    for (const auto& [name, expected] : reference.*values) {
      INFO(name);
      REQUIRE(same_bits((run.*values).at(name), expected));
    }
}

std::vector<std::string> gpt2() { return {}; }

std::vector<std::string> llama() {
  return {"model.norm=rmsnorm", "model.activation=swiglu",   "model.position=rope",       "model.bias=false",
          "model.kv_heads=2",   "model.ffn_hidden_size=160", "model.tie_embeddings=false"};
}

std::vector<std::string> qwen3() {
  return with(llama(), {"model.qk_norm=true", "model.head_dim=24", "model.kv_heads=1", "model.tie_embeddings=true",
                        "model.rope_theta=1000000.0"});
}

std::vector<std::string> with(std::vector<std::string> overrides, const std::vector<std::string>& more) {
  for (const std::string& one : more) {
    const std::string key = one.substr(0, one.find('=') + 1);
    overrides.erase(std::remove_if(overrides.begin(), overrides.end(),
                                   [&](const std::string& old) { return starts_with(old, key); }),
                    overrides.end());
    overrides.push_back(one);
  }
  return overrides;
}

uint64_t test_seed() {
  const char* seed = std::getenv("QUINTET_TEST_SEED");
  return seed == nullptr ? 0 : std::strtoull(seed, nullptr, 16);
}

}  // namespace quintet::testing
