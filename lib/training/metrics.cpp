#include "lib/training/metrics.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "lib/base/error.h"

namespace quintet::training {

using Json = nlohmann::ordered_json;

MetricsFile::MetricsFile(std::string path) : path_(std::move(path)), file_(path_, std::ios::trunc) {
  if (!file_) fail(ExitCode::config, "run.dir: {} cannot be written", path_);
}

void MetricsFile::write_line(const std::string& line) {
  file_ << line << '\n' << std::flush;
  if (!file_) fail(ExitCode::config, "run.dir: {} cannot be written: is the disk full?", path_);
}

// A number that is not finite becomes null, so that the file stays JSON.
void MetricsFile::write(const StepMetrics& metrics) {
  Json bytes;
  for (const Axis axis : kAxes) bytes[std::string(name_of(axis))] = metrics.comm_bytes[axis];
  Json owners;
  for (const device::Owner owner : device::kOwners)
    if (metrics.memory.by_owner[owner] != 0)
      owners[std::string(device::name_of(owner))] = metrics.memory.by_owner[owner];
  Json line = {{"step", metrics.step},
               {"loss", metrics.loss},
               {"grad_norm", metrics.grad_norm},
               {"learning_rate", metrics.learning_rate},
               {"tokens", metrics.tokens},
               {"step_seconds", metrics.step_seconds},
               {"tokens_per_second", metrics.tokens_per_second},
               {"tflops_per_rank", metrics.tflops_per_rank},
               {"mfu", metrics.mfu ? Json(*metrics.mfu) : Json(nullptr)},
               {"memory_peak_bytes", metrics.memory.held},
               {"memory_by_owner", owners},
               {"comm_bytes", bytes},
               {"skipped", metrics.skipped}};
  if (metrics.routing) {
    line["aux_loss"] = metrics.routing->aux_loss;
    line["z_loss"] = metrics.routing->z_loss;
    line["max_expert_load"] = metrics.routing->max_expert_load;
    line["dropped_slots"] = metrics.routing->dropped_slots;
    line["route_digest"] = fmt::format("{:016x}", metrics.routing->digest);
  }
  write_line(line.dump());
}

void MetricsFile::write_validation(int64_t step, double loss) {
  write_line(Json{{"step", step}, {"validation_loss", loss}}.dump());
}

}  // namespace quintet::training
