// Whole training steps on random tokens: no files are read but the config, none are written.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/comm/communicator.h"

namespace quintet {

struct StepBench {
  std::string config;                  // a YAML file
  std::vector<std::string> overrides;  // KEY=VALUE
  int64_t steps = 10;                  // measured, after one to warm up
  double seconds = 0;                  // no step begins so long after the first; 0: no limit
  std::string key;                     // of compare
  std::vector<std::string> values;     // of the key
};

// Prints what a step takes, and how near a pipeline comes to its bound.
int bench_step(const StepBench& options, comm::Communicator& communicator);

// The same steps under several values of a key, in turns, so that what else the machine does meets all alike: prints
// medians of steps, and of each turn's ratio to the first value's.
int bench_compare(const StepBench& options, comm::Communicator& communicator);

}  // namespace quintet
