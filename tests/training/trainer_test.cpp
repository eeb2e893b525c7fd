// The trainer with its files: what a run leaves behind.
#include "lib/training/trainer.h"

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "lib/checkpoint/safetensors.h"
#include "lib/config/load.h"
#include "lib/pipeline/model_parameters.h"
#include "lib/training/flops.h"
#include "lib/training/run_folder.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/training_run.h"

namespace quintet::training {
namespace {

using Json = nlohmann::json;
using testing::read_whole;
using testing::TemporaryFolder;

// A run in a folder of its own, on `ranks` threads.
class Runs {
 public:
  Runs() { folder_.write("text.txt", text()); }

  std::vector<std::string> overrides(const std::vector<std::string>& more) const {
    std::vector<std::string> all = {"data.train=" + folder_.path("text.txt"), "run.dir=" + folder_.path("runs"),
                                    "precision.compute=fp32", "train.steps=4", "logging.tensorboard=false"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  // The process's exit code.
  int train(const std::vector<std::string>& more, int64_t ranks = 1) const {
    return comm::run_thread_ranks(ranks, [&](comm::Communicator& communicator) {
      training::train(testing::tiny_config(overrides(more), ranks), communicator);
    });
  }
  std::filesystem::path path(const std::string& name) const { return folder_ / ("runs/test/" + name); }
  std::vector<Json> metrics() const {
    std::vector<Json> lines;
    std::istringstream file(read_whole(path("metrics.jsonl")));
    for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
    return lines;
  }
  // The losses of the steps, as they stand in the file.
  std::vector<std::string> losses() const {
    std::vector<std::string> losses;
    for (const Json& line : metrics())
      if (line.contains("loss")) losses.push_back(line.at("loss").dump());
    return losses;
  }
  const TemporaryFolder& folder() const { return folder_; }

 private:
  static std::string text() {
    std::string text;
    for (int i = 0; i < 4000; ++i) text += fmt::format("line {} of many ", i * i % 97);
    return text;
  }
  TemporaryFolder folder_;
};

}  // namespace

TEST_CASE("metrics hold every figure once a step, from one writer", "[quick][trainer]") {
  const Runs runs;
  REQUIRE(runs.train({"train.eval_every=2"}, 2) == 0);
  const std::vector<Json> lines = runs.metrics();
  std::vector<int64_t> steps, validated;
  for (const Json& line : lines) {
    if (line.contains("validation_loss")) {
      validated.push_back(line.at("step"));
      continue;
    }
    steps.push_back(line.at("step"));
    for (const char* key : {"loss", "grad_norm", "learning_rate", "tokens", "step_seconds", "tokens_per_second",
                            "tflops_per_rank", "mfu", "memory_peak_bytes", "comm_bytes", "skipped"})
      REQUIRE(line.contains(key));
    REQUIRE(line.at("tokens") == line.at("step").get<int64_t>() * 8 * 32);
    REQUIRE(line.at("comm_bytes").at("dp").get<int64_t>() > 0);
    REQUIRE(line.at("comm_bytes").at("cp") == 0);
  }
  REQUIRE(steps == std::vector<int64_t>{1, 2, 3, 4});
  REQUIRE(validated == std::vector<int64_t>{2, 4});
}

TEST_CASE("metrics of experts say what routers did", "[quick][trainer][moe]") {
  const Runs runs;
  const std::vector<std::string> overrides = {"model.moe.experts=4", "model.moe.capacity_factor=0.5", "train.steps=2"};
  REQUIRE(runs.train(testing::with(overrides, {"mesh.ep=2"}), 2) == 0);
  const testing::Run expected = testing::train_on(runs.folder().path("text.txt"), overrides);
  size_t step = 0;
  for (const Json& line : runs.metrics()) {
    if (!line.contains("loss")) continue;
    const testing::StepRouting& routing = expected.routing.at(step++);
    REQUIRE(line.at("aux_loss").get<double>() == Approx(routing.figures.aux_loss).epsilon(1e-5));
    REQUIRE(line.at("z_loss").get<double>() == Approx(routing.figures.z_loss).epsilon(1e-5));
    REQUIRE(line.at("max_expert_load").get<double>() == Approx(routing.figures.max_expert_load).epsilon(1e-2));
    REQUIRE(line.at("dropped_slots").get<int64_t>() > 0);
    REQUIRE(line.at("route_digest").get<std::string>().size() == 16);
    REQUIRE(line.at("comm_bytes").at("ep").get<int64_t>() > 0);
  }
  REQUIRE(step == 2);
}

TEST_CASE("a token's FLOPs are those of the matrices that it passes through", "[quick][trainer][moe]") {
  const auto flops = [](const std::vector<std::string>& overrides) {
    const config::Config config = testing::tiny_config(
        testing::with({"model.layers=2", "model.hidden_size=32", "model.ffn_hidden_size=48"}, overrides), 1);
    return training::flops_per_token(config.model,
                                     pipeline::model_parameters(config, Mesh(config.mesh.sizes(), config.mesh.order)));
  };
  const double mlp = 6.0 * 2 * 32 * 48, router = 6.0 * 32 * 8;
  const double dense = flops({});
  REQUIRE(dense == 6.0 * (256 * 32 + 2 * 4 * 32 * 32 + 2 * 32 * 32) + 2 * mlp);  // head, attention, its scores
  REQUIRE(flops({"model.moe.experts=8"}) == dense + 2 * (router + mlp));
  REQUIRE(flops({"model.moe.experts=8", "model.moe.top_k=1", "model.moe.every=2", "model.moe.shared_experts=3"}) ==
          dense + router + 3 * mlp);
}

TEST_CASE("the trainer reads the samples, rates and weights that the rules name", "[quick][trainer]") {
  const Runs runs;
  REQUIRE(runs.train({"schedule.warmup_steps=2", "train.steps=6"}, 2) == 0);
  const testing::Run expected = testing::train_on(
      runs.folder().path("text.txt"), {"precision.compute=fp32", "schedule.warmup_steps=2", "train.steps=6"}, 2);
  std::vector<std::string> losses;
  for (const double loss : expected.losses) losses.push_back(Json(loss).dump());
  REQUIRE(runs.losses() == losses);
}

TEST_CASE("the written config trains again to the same losses", "[quick][trainer]") {
  const Runs runs;
  REQUIRE(runs.train({"model.dropout=0.1"}) == 0);
  const std::vector<std::string> first = runs.losses();
  const config::Config again = config::load(runs.path("config.yaml").string(), {}, 1);
  REQUIRE(comm::run_thread_ranks(1, [&](comm::Communicator& communicator) { training::train(again, communicator); }) ==
          0);
  REQUIRE(runs.losses() == first);
}

TEST_CASE("evaluating changes no bit of the training run", "[quick][trainer]") {
  const Runs runs;
  std::vector<std::vector<std::string>> losses;
  for (const char* every : {"train.eval_every=0", "train.eval_every=1", "train.eval_every=3"}) {
    REQUIRE(runs.train({every, "model.dropout=0.1", "train.steps=6"}, 2) == 0);
    losses.push_back(runs.losses());
  }
  REQUIRE(losses[1] == losses[0]);
  REQUIRE(losses[2] == losses[0]);
}

TEST_CASE("an earlier run in the folder is kept aside, or refused on request", "[quick][trainer]") {
  const Runs runs;
  REQUIRE(runs.train({}) == 0);
  const std::string first = read_whole(runs.path("metrics.jsonl"));
  REQUIRE(runs.train({"train.steps=2"}) == 0);
  REQUIRE(read_whole(runs.path("earlier_1/metrics.jsonl")) == first);
  REQUIRE(runs.train({"checkpoint.resume=never"}) == 2);
}

TEST_CASE("a folder belongs to one run at a time", "[quick][trainer]") {
  const Runs runs;
  {
    const FolderLock other(runs.path("").string());
    REQUIRE(runs.train({}, 2) == 2);
    REQUIRE(!std::filesystem::exists(runs.path("metrics.jsonl")));
  }
  REQUIRE(runs.train({}, 2) == 0);
}

TEST_CASE("gradient and weight dumps hold every parameter whole, the same on any number of ranks", "[quick][trainer]") {
  std::vector<std::string> gradients, weights;
  for (const char* zero :
       {"parallel.zero.stage=0", "parallel.zero.stage=1", "parallel.zero.stage=2", "parallel.zero.stage=3"}) {
    const Runs runs;
    REQUIRE(runs.train({"logging.gradient_dump_steps=[1]", "logging.weight_dump_steps=[0, 4]", zero}, 4) == 0);
    gradients.push_back(read_whole(runs.path("gradients/step_00000001.safetensors")));
    weights.push_back(read_whole(runs.path("weights/step_00000004/model.safetensors")));
    REQUIRE(std::filesystem::exists(runs.path("weights/step_00000000/config.json")));
    const checkpoint::SafetensorsReader reader(runs.path("gradients/step_00000001.safetensors"));
    REQUIRE(reader.find("embedding.weight").shape == std::vector<int64_t>{256, 64});
    REQUIRE(reader.header().tensors.size() == 4 + 4 * 16);
  }
  for (const size_t stage : {0, 2}) {  // each with the next
    REQUIRE(gradients[stage + 1] == gradients[stage]);
    REQUIRE(weights[stage + 1] == weights[stage]);
  }
}

TEST_CASE("a dump changes neither the run nor its count of bytes", "[quick][trainer]") {
  const Runs runs;
  REQUIRE(runs.train({}, 2) == 0);
  const std::vector<Json> plain = runs.metrics();
  REQUIRE(runs.train({"logging.gradient_dump_steps=[1, 2]", "logging.weight_dump_steps=[1]"}, 2) == 0);
  const std::vector<Json> dumped = runs.metrics();
  for (size_t i = 0; i < 4; ++i)
    for (const char* key : {"loss", "grad_norm", "comm_bytes"}) REQUIRE(dumped[i].at(key) == plain[i].at(key));
}

TEST_CASE("every step hands over the same bytes under every ZeRO stage, whatever is evaluated in between",
          "[quick][trainer][zero]") {
  for (const int stage : {0, 1, 2, 3}) {
    const Runs runs;
    REQUIRE(runs.train({"train.eval_every=2", "mesh.pp=2", fmt::format("parallel.zero.stage={}", stage)}, 4) == 0);
    std::vector<Json> bytes;
    for (const Json& line : runs.metrics())
      if (line.contains("comm_bytes")) bytes.push_back(line.at("comm_bytes"));
    REQUIRE(bytes.size() == 4);
    for (const Json& step : bytes) REQUIRE(step == bytes.front());
  }
}

TEST_CASE("an exploding run stops with the numeric exit code and readable metrics", "[quick][trainer]") {
  const Runs runs;
  REQUIRE(runs.train({"optimizer.learning_rate=1.0e+30", "train.steps=20"}, 2) == 5);
  const std::vector<Json> lines = runs.metrics();
  REQUIRE(lines.size() < 20);
  REQUIRE((lines.back().at("loss").is_null() || lines.back().at("grad_norm").is_null()));
}

TEST_CASE("every ZeRO stage finds the same first tensor that is not finite", "[quick][trainer][zero]") {
  std::vector<std::string> ends;
  for (const int stage : {0, 1, 2, 3}) {
    const Runs runs;
    REQUIRE(runs.train({"optimizer.learning_rate=1.0e+30", "train.steps=20", "mesh.pp=2",
                        fmt::format("parallel.zero.stage={}", stage)},
                       4) == 5);
    const std::string log = read_whole(runs.path("log.txt"));
    const size_t found = log.find("the first tensor that is not finite is ");
    REQUIRE(found != std::string::npos);
    ends.push_back(log.substr(found));
  }
  for (const std::string& end : ends) REQUIRE(end == ends.front());
}

TEST_CASE("every schedule finds the same first tensor that is not finite", "[quick][trainer][schedules]") {
  std::vector<std::string> names;
  for (const std::string schedule :
       {"1f1b", "gpipe", "interleaved parallel.pipeline.virtual_stages=2", "zero_bubble", "zero_bubble_v"}) {
    INFO(schedule);
    const size_t space = schedule.find(' ');
    std::vector<std::string> overrides = {"optimizer.learning_rate=1.0e+30", "train.steps=20", "mesh.pp=2",
                                          "parallel.pipeline.schedule=" + schedule.substr(0, space)};
    if (space != std::string::npos) overrides.push_back(schedule.substr(space + 1));
    const Runs runs;
    REQUIRE(runs.train(overrides, 2) == 5);
    const std::string log = read_whole(runs.path("log.txt"));
    const size_t found = log.find("the first tensor that is not finite is ");
    REQUIRE(found != std::string::npos);
    names.push_back(log.substr(found, log.find(" on ", found) - found));  // which rank has it, the schedule says
  }
  for (const std::string& name : names) REQUIRE(name == names.front());
}

TEST_CASE("a skipped step keeps weights, advances data and rate, and is marked", "[quick][trainer]") {
  for (const int stage : {0, 1, 2, 3}) {
    const Runs runs;
    // The first update ruins the weights, so every later step is skipped until there are too many.
    REQUIRE(runs.train({"optimizer.learning_rate=1.0e+30", "train.steps=20", "fault.on_non_finite=skip",
                        "fault.max_skipped_steps=3", "logging.weight_dump_steps=[1, 4]",
                        fmt::format("parallel.zero.stage={}", stage)},
                       2) == 5);
    int64_t skipped = 0;
    for (const Json& line : runs.metrics()) skipped += line.at("skipped").get<bool>() ? 1 : 0;
    REQUIRE(skipped == 4);
    const bool kept = read_whole(runs.path("weights/step_00000004/model.safetensors")) ==
                      read_whole(runs.path("weights/step_00000001/model.safetensors"));
    REQUIRE(kept);
  }
}

TEST_CASE("data that is missing, empty or too short ends with the data exit code before a folder is made",
          "[quick][trainer]") {
  const Runs runs;
  runs.folder().write("empty.txt", "");
  runs.folder().write("short.txt", "too short");
  for (const char* name : {"absent.txt", "empty.txt", "short.txt"})
    REQUIRE(runs.train({"data.train=" + runs.folder().path(name)}, 2) == 3);
  REQUIRE(!std::filesystem::exists(runs.path("")));
}

TEST_CASE("a model larger than memory is refused before anything is allocated", "[quick][trainer]") {
  const Runs runs;
  REQUIRE(runs.train({"model.hidden_size=65536", "model.layers=64"}) == 2);
  REQUIRE(!std::filesystem::exists(runs.path("")));
}

}  // namespace quintet::training
