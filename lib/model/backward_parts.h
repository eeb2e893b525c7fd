// A layer's backward has two parts: backward_input finds the gradient of its input and returns what backward_weight
// needs, which adds to the gradients of parameters. Schedules may run the second later (Qi et al. 2023, "Zero Bubble
// Pipeline Parallelism").
#pragma once

#include <string>

#include "lib/model/pass.h"

namespace quintet::model {

// Local rows [T', H] that both parts may read whole. Kept whole until a later weight part they would take tp times the
// memory, so that it gathers them again.
struct GatheredRows {
  Tensor local;                             // lives until the weight part
  parallel::TensorRegion::Gathered copied;  // while the parts are not split

  // The rows of all ranks, in the weight part.
  Tensor whole(Pass& pass, const std::string& what) {
    if (pass.splits_backward) return pass.tensor.gather(pass.scratch, local, what);
    copied.done.wait();
    return copied.whole;
  }
};

// The backward of a layer that splits its work over tensor ranks: both parts, the weights' products while the parts of
// d_x travel; or, where the parts are split, the input part alone. Returns what its weight part needs.
template <typename Layer, typename Saved>
auto backward_of(const Layer& layer, Pass& pass, Tensor d_output, Tensor d_x, const Saved& saved) {
  const device::ArenaScope scope(pass.scratch);
  auto gradients = layer.backward_input(pass, d_output, d_x, saved);
  if (!pass.splits_backward) layer.backward_weight(pass, saved, gradients);
  gradients.reduced.wait();
  gradients.reduced = {};
  pass.observe(layer.name() + " input gradient", d_x);
  return gradients;
}

}  // namespace quintet::model
