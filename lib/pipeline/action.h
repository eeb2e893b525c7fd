// What the ranks of a pipeline do, as data: actions on a stage and a microbatch, and the ranks that stages lie on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace quintet::pipeline {

// What a stage does with one microbatch. Activations travel to the next stage, gradients of them to the previous one;
// a neighbour on the same rank takes them over without a transfer. A receive is only posted: the computation that needs
// the message waits for it. A send takes what was just computed and never blocks.
struct Action {
  enum class Kind : uint8_t {
    forward,
    backward,         // both parts, layer by layer
    backward_input,   // the gradient of the stage's input only
    backward_weight,  // the gradients of its parameters, from what backward_input left
    receive_activation,
    send_activation,
    receive_gradient,
    send_gradient
  };
  static constexpr int64_t kKinds = 8;

  Kind kind;
  int64_t stage;  // of the whole pipeline
  int64_t microbatch;

  bool computes() const { return kind <= Kind::backward_weight; }
  // Whether it makes the gradient of the stage's input.
  bool is_backward() const { return kind == Kind::backward || kind == Kind::backward_input; }
  // Whether it adds to the gradients of parameters; what the stage kept of the microbatch is free then.
  bool completes() const { return kind == Kind::backward || kind == Kind::backward_weight; }
  bool operator==(const Action&) const = default;
};

// "forward of microbatch 3 on stage 1", "gradient receive of microbatch 3 on stage 1".
std::string to_string(const Action& action);
// "F1.3", "<g1.3": the same for a picture, with letters F, B, I, W and < > for receives and sends.
std::string symbol(const Action& action);

// The stage at the other end of a transfer.
int64_t peer_stage(const Action& transfer);
// The channel that a transfer's message takes between two ranks: one for each kind of message and receiving stage, and
// none is 0. Both ends carry a channel's microbatches in ascending order.
uint16_t channel_of(const Action& transfer);

// Which rank of the pipeline holds which stages.
struct StagePlacement {
  enum class Shape : uint8_t {
    loop,  // round and round: stage s on rank s mod ranks
    vee,   // down and up again, two chunks a rank: the first and the last stage share rank 0
  };
  Shape shape = Shape::loop;
  int64_t ranks = 1;
  int64_t chunks = 1;  // stages a rank

  int64_t stages() const { return ranks * chunks; }
  int64_t last_stage() const { return stages() - 1; }
  int64_t rank_of(int64_t stage) const;
  // A stage's place among those of its rank.
  int64_t chunk_of(int64_t stage) const { return stage / ranks; }
  // In ascending order.
  std::vector<int64_t> stages_of(int64_t rank) const;
  // Whether a stage and the one after it share a rank.
  bool hands_over(int64_t stage) const { return rank_of(stage) == rank_of(stage + 1); }
};

// What each rank does, in order: one list a rank.
using ActionLists = std::vector<std::vector<Action>>;

}  // namespace quintet::pipeline
