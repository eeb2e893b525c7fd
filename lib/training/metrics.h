// metrics.jsonl: one line a step, one writer, flushed, every number in the shortest form that reads back to the same
// double.
#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

#include "lib/mesh/mesh.h"
#include "lib/training/memory_report.h"

namespace quintet::training {

struct StepMetrics {
  int64_t step = 0;  // from 1
  double loss = 0;
  double grad_norm = 0;
  double learning_rate = 0;
  int64_t tokens = 0;  // of the whole run so far
  double step_seconds = 0;
  double tokens_per_second = 0;  // of all ranks
  double tflops_per_rank = 0;
  std::optional<double> mfu;  // absent where the device's peak is unknown
  MemoryPeaks memory;         // of the fullest rank
  PerAxis<int64_t> comm_bytes{};
  bool skipped = false;
  // With a mixture of experts.
  struct Routing {
    double aux_loss = 0, z_loss = 0;  // unweighted
    double max_expert_load = 0;       // the busiest expert's slots over the mean of its layer
    int64_t dropped_slots = 0;
    uint64_t digest = 0;
  };
  std::optional<Routing> routing;
};

class MetricsFile {
 public:
  // Starts `path` anew.
  explicit MetricsFile(std::string path);
  void write(const StepMetrics& metrics);
  void write_validation(int64_t step, double loss);

 private:
  void write_line(const std::string& line);
  std::string path_;
  std::ofstream file_;
};

}  // namespace quintet::training
