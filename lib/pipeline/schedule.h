// A pipeline schedule is data: a pure function from stages and microbatches to a list of actions for each stage.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/config/config.h"

namespace quintet::pipeline {

struct Action {
  enum class Kind : uint8_t { forward, backward };
  Kind kind;
  int64_t microbatch;

  static Action forward(int64_t microbatch) { return {Kind::forward, microbatch}; }
  static Action backward(int64_t microbatch) { return {Kind::backward, microbatch}; }
  bool operator==(const Action&) const = default;
};

// All forwards, then all backwards, both first in first out (Huang et al. 2019).
std::vector<Action> gpipe(int64_t microbatches);

// One-forward-one-backward (Narayanan et al. 2021, section 2.2.1): after stages - stage - 1 warm-up forwards each stage
// alternates, so it never keeps more than stages - stage microbatches.
std::vector<Action> one_f_one_b(int64_t stages, int64_t stage, int64_t microbatches);

// The list that `schedule` asks for.
std::vector<Action> actions(config::PipelineSchedule schedule, int64_t stages, int64_t stage, int64_t microbatches);

}  // namespace quintet::pipeline
