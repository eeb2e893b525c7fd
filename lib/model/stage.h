// The part of the model that one pipeline stage holds: a run of layers, the embedding before the first and the head
// after the last.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lib/model/block.h"
#include "lib/model/embedding.h"
#include "lib/model/head.h"

namespace quintet::model {

struct StageSaved {
  std::vector<BlockSaved> blocks;
  HeadSaved head;
};

// Told, in the order of backward, that the gradients of parameters [first, last) of the store take no more additions.
using GradientsDone = std::function<void(size_t first, size_t last)>;

class Stage {
 public:
  // The whole model. Registers its parameters in `store`, from the embedding to the head.
  Stage(parallel::ParameterStore& store, const config::Model& config, const RopeTable& rope);

  // Adds the microbatch's token losses to `loss`; what backward needs is kept in `saved`.
  void forward(Pass& pass, StageSaved& saved, ExactSum& loss) const;
  // Adds the microbatch's gradients to the store's. `done` may be empty.
  void backward(Pass& pass, const StageSaved& saved, const GradientsDone& done) const;

 private:
  std::optional<Embedding> embedding_;
  std::deque<Block> blocks_;
  std::optional<Head> head_;
  std::vector<size_t> first_parameter_;  // of embedding, each block, head; then the end
};

}  // namespace quintet::model
