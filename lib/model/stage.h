// The part of the model that one pipeline stage holds: a run of layers, the embedding before the first and the head
// after the last.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "lib/model/block.h"
#include "lib/model/embedding.h"
#include "lib/model/head.h"

namespace quintet::model {

// Which part.
struct StagePart {
  int64_t first_layer = 0, layers = 0;
  bool is_first = true, is_last = true;  // of the pipeline's stages
};

struct StageSaved {
  std::vector<BlockSaved> blocks;
  std::vector<Tensor> inputs;  // [T', H], of blocks that are computed again
  HeadSaved head;
  // Of a backward: what its weight part needs of its input part.
  std::vector<BlockGradients> gradients;
  Tensor d_embedding;  // [T', H]
};

// What the passes of microbatches counted.
struct Counts {
  ExactSum loss;          // of tokens, on the last stage
  RoutingTotals routing;  // of an MoE model's training passes
};

class Stage {
 public:
  // Registers the part's parameters in `store`, from the embedding to the head. `earlier`: the embedding, where another
  // stage of this rank has it.
  Stage(parallel::ParameterStore& store, const config::Config& config, const RopeTable& rope, const StagePart& part,
        const Embedding* earlier = nullptr);

  // input: [T', H] of the stage before, kept by the caller until backward; absent on the first stage. output: [T', H]
  // for the next stage; absent on the last, whose head waits for the backward, but in an evaluation. What backward
  // needs and what layers count is kept in `saved`.
  void forward(Pass& pass, Tensor input, Tensor output, StageSaved& saved) const;
  // Adds the microbatch's gradients to the store's. d_stream [T', H]: in, the gradient of the output, but on the last
  // stage, which makes it; out, that of the input, but on the first, which uses it up.
  void backward(Pass& pass, StageSaved& saved, Tensor d_stream) const;
  // The same in two actions. The first turns d_stream and leaves in `saved` and pass.saved what the second needs, which
  // adds to the gradients; but the head's are added at once, where its logits are.
  void backward_input(Pass& pass, StageSaved& saved, Tensor d_stream) const;
  void backward_weight(Pass& pass, StageSaved& saved) const;

  // Adds what the layers counted of a microbatch whose passes are done.
  void add_counts(const StageSaved& saved, Counts& counts) const;

  // Moves the balance biases of MoE layers by a step's loads over all ranks, [MoE layers of the model, E].
  void balance(device::Device& device, std::span<const int64_t> loads) const;

  const StagePart& part() const { return part_; }
  // Null where it lies elsewhere.
  const Embedding* embedding() const { return embedding_ ? &*embedding_ : nullptr; }

 private:
  void recompute(Pass& pass, size_t block, StageSaved& saved) const;
  void run_backward(Pass& pass, StageSaved& saved, Tensor d_stream) const;

  StagePart part_;
  std::optional<Embedding> embedding_;
  std::deque<Block> blocks_;
  std::optional<Head> head_;
};

}  // namespace quintet::model
