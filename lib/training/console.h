// What a person reads: the tables at the start of a run and a line a step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lib/comm/communicator.h"
#include "lib/config/config.h"
#include "lib/data/dataset.h"
#include "lib/training/log.h"
#include "lib/training/metrics.h"

namespace quintet::training {

// Mesh, device and the place of each rank. Every rank calls it.
void show_mesh(Log& log, comm::Communicator& communicator, const std::string& device);
void show_model(Log& log, const config::Config& config, int64_t parameters, double flops_per_token);
void show_data(Log& log, const data::Dataset& training, const std::optional<data::Dataset>& validation);
// How a pipeline deals out the layers.
void show_stages(Log& log, const config::Config& config);
// "step 12/200  6.0%  loss 3.2101  norm 0.812  rate 3.00e-04  8123 tokens/s  light 41.2%  1:12 left".
std::string step_line(const StepMetrics& metrics, int64_t steps, double seconds_left);
// A bar for the terminal: "[#####.....] 50.0%  loss 3.21  8123 tokens/s  1:12 left".
std::string progress_bar(const StepMetrics& metrics, int64_t steps, double seconds_left);

}  // namespace quintet::training
