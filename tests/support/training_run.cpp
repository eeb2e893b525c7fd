#include "tests/support/training_run.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>

#include <catch2/catch.hpp>

#include "lib/base/random.h"
#include "lib/comm/communicator.h"
#include "lib/config/load.h"
#include "lib/data/dataset.h"
#include "lib/optimizer/learning_rate.h"
#include "lib/pipeline/engine.h"
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
)";

// Words drawn by a fixed formula: enough order for a loss that falls.
std::string corpus() {
  constexpr const char* kWords[] = {"the ", "ring ", "of ", "ranks ", "adds ", "what ", "each ", "one ", "holds. "};
  std::string text;
  for (uint64_t i = 0; text.size() < 40000; ++i) text += kWords[philox(7, i, 0)[0] % 9];
  return text;
}

NamedValues copy_out(const parallel::ParameterStore& store, Tensor (parallel::Parameter::*view)() const) {
  NamedValues values;
  for (const parallel::Parameter& parameter : store.parameters())
    visit_compute_type(store.dtype(), [&]<typename T>() {
      const std::span<T> span = (parameter.*view)().template span<T>();
      values[parameter.name()].assign(span.begin(), span.end());
    });
  return values;
}

void train_rank(const config::Config& config, comm::Communicator& communicator, Run& run) {
  communicator.set_mesh(Mesh(config.mesh.sizes(), config.mesh.order));
  communicator.set_watchdog(120);
  const auto device = device::make_cpu_device(static_cast<int>(std::max<int64_t>(1, config.device.threads)));
  pipeline::Engine engine(config, communicator, *device, std::numeric_limits<int64_t>::max());

  data::DatasetOptions options;
  for (const config::DataSource& source : config.data.train) options.entries.push_back({source.path, source.weight});
  options.sequence_length = config.model.seq_length;
  options.seed = static_cast<uint64_t>(config.run.seed);
  options.shuffle = config.data.shuffle;
  data::Split split = data::open_split(options, {.fraction = std::get<double>(config.data.validation)});

  const bool speaks = communicator.placement().rank == 0;
  if (speaks) run.initial_weights = copy_out(engine.parameters(), &parallel::Parameter::weight);
  data::BatchPlace place{
      .data_rank = engine.data_rank(), .data_ranks = engine.data_ranks(), .size = config.train.micro_batch_size};
  for (int64_t step = 1; step <= config.train.steps; ++step) {
    communicator.traffic() = {};
    const pipeline::Gradients found = engine.forward_backward([&](int64_t microbatch, data::Batch& batch) {
      place.base = (step - 1) * config.train.global_batch_size;
      place.microbatch = microbatch;
      data::fill_batch(split.training, place, batch);
    });
    if (step == 1) {
      engine.optimizer().gather_gradients();
      if (speaks) run.gradients = copy_out(engine.parameters(), &parallel::Parameter::gradient);
    }
    engine.update(optimizer::learning_rate(config.optimizer, config.schedule, step), found);
    PerAxis<int64_t> bytes = communicator.traffic().bytes;
    communicator.world()
        .all_reduce(Tensor(bytes.values.data(), DType::i64, {kAxisCount}), comm::Reduction::max, "bytes")
        .wait();
    if (!speaks) continue;
    run.losses.push_back(found.loss);
    run.norms.push_back(found.norm);
    run.counted.push_back(found.counted);
    run.comm_bytes.push_back(bytes);
  }
  const int64_t samples =
      std::min(config.train.eval_steps * config.train.global_batch_size, split.validation->windows());
  place.base = 0;
  place.limit = samples;
  const double validation = engine.evaluate(data::microbatches_for(samples, place.data_ranks, place.size),
                                            [&](int64_t microbatch, data::Batch& batch) {
                                              place.microbatch = microbatch;
                                              data::fill_batch(*split.validation, place, batch);
                                            });
  if (!speaks) return;
  run.validation_loss = validation;
  run.weights = copy_out(engine.parameters(), &parallel::Parameter::weight);
}

bool close(double a, double b, double tol) { return std::abs(a - b) <= tol * std::abs(b); }

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

}  // namespace

config::Config tiny_config(const std::vector<std::string>& overrides, int64_t ranks) {
  return config::load_from_string(kTinyModel, "tiny.yaml", overrides, ranks);
}

Run train(const std::vector<std::string>& overrides, int64_t ranks) {
  const TemporaryFolder folder;
  return train_on(folder.write("text.txt", corpus()), overrides, ranks);
}

Run train_on(const std::string& text_file, const std::vector<std::string>& overrides, int64_t ranks) {
  const config::Config config = tiny_config(with(overrides, {"data.train=" + text_file}), ranks);
  Run run;
  const int code =
      comm::run_thread_ranks(ranks, [&](comm::Communicator& communicator) { train_rank(config, communicator, run); });
  REQUIRE(code == 0);
  return run;
}

void require_equal_training(const Run& run, const Run& reference, double tol) {
  REQUIRE(run.losses.size() == reference.losses.size());
  for (size_t i = 0; i < run.losses.size(); ++i) {
    INFO("step " << i + 1);
    INFO("loss " << run.losses[i] << " against " << reference.losses[i]);
    INFO("norm " << run.norms[i] << " against " << reference.norms[i]);
    REQUIRE(close(run.losses[i], reference.losses[i], tol));
    REQUIRE(close(run.norms[i], reference.norms[i], tol));
    REQUIRE(run.counted[i] == reference.counted[i]);
  }
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
  REQUIRE(close(run.validation_loss, reference.validation_loss, tol));
}

void require_same_bits(const Run& run, const Run& reference) {
  REQUIRE(same_bits(run.losses, reference.losses));
  REQUIRE(same_bits(run.norms, reference.norms));
  REQUIRE(same_bits({run.validation_loss}, {reference.validation_loss}));
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
  return with(llama(), {"model.qk_norm=true", "model.head_dim=24", "model.heads=3", "model.kv_heads=1",
                        "model.tie_embeddings=true", "model.rope_theta=1000000.0"});
}

std::vector<std::string> with(std::vector<std::string> overrides, const std::vector<std::string>& more) {
  for (const std::string& one : more) {
    const std::string key = one.substr(0, one.find('=') + 1);
    overrides.erase(std::remove_if(overrides.begin(), overrides.end(),
                                   [&](const std::string& old) { return old.compare(0, key.size(), key) == 0; }),
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
