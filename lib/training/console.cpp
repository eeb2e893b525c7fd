#include "lib/training/console.h"

#include <sched.h>

#include <algorithm>
#include <vector>

#include <fmt/ranges.h>

#include "lib/config/enums.h"
#include "lib/model/routing.h"
#include "lib/pipeline/schedule.h"
#include "lib/pipeline/stage_split.h"

namespace quintet::training {
namespace {

constexpr int64_t kPlacesShown = 16;

std::string grouped(int64_t number) {
  std::string digits = std::to_string(number);
  for (auto place = static_cast<int64_t>(digits.size()) - 3; place > 0; place -= 3)
    digits.insert(static_cast<size_t>(place), ",");
  return digits;
}

std::string clock(double seconds) {
  const auto whole = static_cast<int64_t>(seconds);
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

// "0-3,8": the CPUs that the calling thread may use.
std::string usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return "?";
  std::string text;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &set)) continue;
    int last = cpu;
    while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, &set)) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", cpu);
    if (last > cpu) text += fmt::format("-{}", last);
    cpu = last;
  }
  return text;
}

// One line of every rank, on all ranks.
std::vector<std::string> gather_lines(comm::ProcessGroup& world, const std::string& line) {
  constexpr size_t kWidth = 160;
  std::string own = line.substr(0, kWidth);
  own.resize(kWidth, ' ');
  std::string all(kWidth * static_cast<size_t>(world.size()), ' ');
  const std::vector<int64_t> counts(static_cast<size_t>(world.size()), static_cast<int64_t>(kWidth));
  world
      .all_gather(Tensor(own.data(), DType::u8, {static_cast<int64_t>(kWidth)}), counts,
                  Tensor(all.data(), DType::u8, {static_cast<int64_t>(all.size())}), "places of ranks")
      .wait();
  std::vector<std::string> lines;
  for (size_t i = 0; i < all.size(); i += kWidth) {
    std::string text = all.substr(i, kWidth);
    text.erase(text.find_last_not_of(' ') + 1);
    lines.push_back(std::move(text));
  }
  return lines;
}

}  // namespace

void show_mesh(Log& log, comm::Communicator& communicator, const std::string& device) {
  const Mesh& mesh = communicator.mesh();
  const comm::Placement& placement = communicator.placement();
  std::string sizes;
  for (const Axis axis : kAxes)
    sizes += fmt::format("{}{} {}", sizes.empty() ? "" : ", ", name_of(axis), mesh.size(axis));
  log.info("mesh      {} = {} ranks, launched as {}", sizes, mesh.world_size(), placement.launch);
  log.info("device    {}", device);
  const std::string place =
      fmt::format("{}, node {}, CPUs {}", mesh.label_of(placement.rank), placement.node, usable_cpus());
  const std::vector<std::string> places = gather_lines(communicator.world(), place);
  for (int64_t rank = 0; rank < std::min(mesh.world_size(), kPlacesShown); ++rank)
    log.info("          {}", places[static_cast<size_t>(rank)]);
  if (mesh.world_size() > kPlacesShown) log.info("          ... and {} more", mesh.world_size() - kPlacesShown);
}

void show_model(Log& log, const config::Config& config, int64_t parameters, double flops_per_token) {
  const config::Model& model = config.model;
  log.info("model     {} parameters: {} layers, hidden {}, {} heads of {} ({} for keys), ffn {} {}, {}, {} positions",
           grouped(parameters), model.layers, model.hidden_size, model.heads, model.head_dim, model.kv_heads,
           model.ffn_hidden_size, config::name_of(model.activation), config::name_of(model.norm),
           config::name_of(model.position));
  log.info("          vocabulary {}, sequence {}, {:.4g} MFLOP a token, computed in {}", model.vocab_size,
           model.seq_length, flops_per_token / 1e6, config::name_of(config.precision.compute));
  if (model.moe) {
    const config::Moe& moe = *model.moe;
    log.info("experts   {} of ffn {} in {} of the layers, {} a token{}; {} routing, balance {}", moe.experts,
             moe.ffn_hidden_size, model::moe_layers(model), moe.top_k,
             moe.shared_experts == 0 ? "" : fmt::format(" and {} shared", moe.shared_experts),
             config::name_of(moe.routing), config::name_of(moe.balance));
  }
  if (config.mesh.cp > 1)
    log.info("context   {} positions a rank by {}, balance {}", model.seq_length / config.mesh.cp,
             config::name_of(config.parallel.context.method), config::name_of(config.parallel.context.balance));
  const config::Train& train = config.train;
  log.info("batch     {} sequences a step = {} tokens; {} a microbatch and data rank; ZeRO {}", train.global_batch_size,
           grouped(train.global_batch_size * model.seq_length), train.micro_batch_size, config.parallel.zero.stage);
}

void show_data(Log& log, const data::Dataset& training, const std::optional<data::Dataset>& validation) {
  const auto show = [&log](const char* title, const data::Dataset& dataset) {
    for (const data::SourceSummary& source : dataset.summary())
      log.info("{}{}: {} files, {} tokens, {} windows, {:.1f}% of samples", title, source.name, source.files,
               grouped(source.tokens), grouped(source.windows), 100 * source.share);
  };
  show("data      ", training);
  if (validation) show("validate  ", *validation);
}

void show_stages(Log& log, const config::Config& config) {
  const pipeline::StagePlacement placement = pipeline::placement_of(config);
  if (placement.stages() == 1) return;
  log.info("stages    {} of {} layers{}, schedule {}", placement.stages(),
           fmt::join(pipeline::layers_of_stages(config), ", "),
           placement.chunks == 1 ? "" : fmt::format(", {} a rank", placement.chunks),
           config::name_of(config.parallel.pipeline.schedule));
}

std::string step_line(const StepMetrics& metrics, int64_t steps, double seconds_left) {
  const std::string light = metrics.mfu ? fmt::format("light {:.1f}%  ", 100 * *metrics.mfu) : "";
  return fmt::format("step {}/{}  {:.1f}%  loss {:.4f}  norm {:.4f}  rate {:.2e}  {:.0f} tokens/s  {}{} left{}",
                     metrics.step, steps, 100.0 * static_cast<double>(metrics.step) / static_cast<double>(steps),
                     metrics.loss, metrics.grad_norm, metrics.learning_rate, metrics.tokens_per_second, light,
                     clock(seconds_left), metrics.skipped ? "  SKIPPED" : "");
}

std::string progress_bar(const StepMetrics& metrics, int64_t steps, double seconds_left) {
  constexpr int64_t kWidth = 30;
  const int64_t filled = kWidth * metrics.step / steps;
  return fmt::format("[{}{}] {:.1f}%  loss {:.4f}  {:.0f} tokens/s  {} left",
                     std::string(static_cast<size_t>(filled), '#'),
                     std::string(static_cast<size_t>(kWidth - filled), '.'),
                     100.0 * static_cast<double>(metrics.step) / static_cast<double>(steps), metrics.loss,
                     metrics.tokens_per_second, clock(seconds_left));
}

}  // namespace quintet::training
