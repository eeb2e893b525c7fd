// A pipeline schedule is data: a pure function from stages and microbatches to a list of actions for each stage.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/config/config.h"

namespace quintet::pipeline {

// What a stage does with one microbatch. Activations travel to the next stage, gradients of them to the previous one.
// A receive is only posted: the forward or backward that needs the message waits for it. A send takes what was just
// computed and never blocks.
struct Action {
  enum class Kind : uint8_t { forward, backward, receive_activation, send_activation, receive_gradient, send_gradient };
  Kind kind;
  int64_t microbatch;

  static Action forward(int64_t microbatch) { return {Kind::forward, microbatch}; }
  static Action backward(int64_t microbatch) { return {Kind::backward, microbatch}; }
  static Action receive_activation(int64_t microbatch) { return {Kind::receive_activation, microbatch}; }
  static Action send_activation(int64_t microbatch) { return {Kind::send_activation, microbatch}; }
  static Action receive_gradient(int64_t microbatch) { return {Kind::receive_gradient, microbatch}; }
  static Action send_gradient(int64_t microbatch) { return {Kind::send_gradient, microbatch}; }
  bool computes() const { return kind == Kind::forward || kind == Kind::backward; }
  bool operator==(const Action&) const = default;
};

// "forward of microbatch 3", "gradient receive of microbatch 3".
std::string to_string(const Action& action);

// All forwards, then all backwards, both first in first out (Huang et al. 2019).
std::vector<Action> gpipe(int64_t microbatches);

// One-forward-one-backward (Narayanan et al. 2021, section 2.2.1): after stages - stage - 1 warm-up forwards each stage
// alternates, so it never keeps more than stages - stage microbatches.
std::vector<Action> one_f_one_b(int64_t stages, int64_t stage, int64_t microbatches);

// All forwards and no backward, for an evaluation.
std::vector<Action> forward_only(int64_t microbatches);

// A stage's forwards and backwards with the transfers that they need. Each receive is posted one computation ahead of
// its own, so that the message travels while the stage computes.
std::vector<Action> with_transfers(std::span<const Action> computations, int64_t stages, int64_t stage);

// The list that `schedule` asks for, transfers included.
std::vector<Action> actions(config::PipelineSchedule schedule, int64_t stages, int64_t stage, int64_t microbatches);

// How many microbatches a stage keeps at most between their forward and their backward: the schedule's promise, by
// which memory is planned.
int64_t most_in_flight(config::PipelineSchedule schedule, int64_t stages, int64_t stage, int64_t microbatches);

}  // namespace quintet::pipeline
