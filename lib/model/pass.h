// What a layer needs besides its inputs while one microbatch passes through it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lib/base/random.h"
#include "lib/config/config.h"
#include "lib/device/device.h"
#include "lib/device/element_types.h"
#include "lib/device/memory.h"
#include "lib/parallel/context_region.h"
#include "lib/parallel/expert_dispatch.h"
#include "lib/parallel/tensor_region.h"
#include "lib/parallel/unit.h"

namespace quintet::model {

// One microbatch on the device: this rank's positions of B sequences, T = B * S / cp tokens, chunk by chunk
// (lib/parallel/context_region.h).
struct Microbatch {
  int64_t sequences = 0;           // B
  Tensor tokens;                   // i32 [T]
  Tensor targets;                  // i32 [T]; -1: does not count
  Tensor positions;                // i32 [T], within the sequence, or within the document where documents are masked
  Tensor rows;                     // i64 [T]: sample ordinal * S + position, the identity that dropout is keyed by
  std::vector<int64_t> host_rows;  // the same on the host
  int64_t first_ordinal = 0;       // of its sequences
  Tensor document_starts;          // i32 [T], where documents are masked: first position that each row may see
  Tensor all_document_starts;      // i32 [B * S]: the same of whole sequences, where attention works on these
};

// Told of every intermediate tensor by its name, in the order of computation; used to find the first bad one.
using Observer = std::function<void(const std::string& name, Tensor tensor)>;

// What a pass through the model is for.
enum class Mode : uint8_t {
  train,     // forward and backward of a training step
  evaluate,  // forward only, without dropout; routers count nothing
  recompute  // a training step's forward again, for what it did not keep: the same bits, but nothing is counted
};

struct Pass {
  device::Device& device;
  device::Arena& saved;    // lives until this microbatch's backward is done
  device::Arena& scratch;  // given back in the order of a stack, within a layer
  device::Arena& logits;   // of the head's chunk of tokens
  const parallel::TensorRegion& tensor;
  const parallel::ContextRegion& context;
  parallel::UnitObserver& units;  // told of every use of parameters
  const Microbatch& batch;
  device::ElementTypes types;
  Mode mode = Mode::train;
  config::Recompute recompute = config::Recompute::none;  // what forward does not keep, and backward computes again
  double dropout = 0;                                     // the model's probability; see drops()
  uint64_t seed = 0;
  // Whether the weight part of this backward comes later, in an action of its own.
  bool splits_backward = false;
  double loss_scale = 1;                               // of d_logits: 1 / tokens that count in the global batch
  int64_t logits_bytes = int64_t{64} << 20;            // that the head's chunk may take
  const parallel::ExpertDispatch* dispatch = nullptr;  // of MoE layers
  const Observer* observer = nullptr;

  int64_t sequences() const { return batch.sequences; }
  int64_t tokens() const { return batch.tokens.elements(); }
  // T', the rows of the residual stream that this rank holds: T, or T / tp where the sequence is split.
  int64_t local_tokens() const { return tensor.local_rows(tokens()); }

  // The identities of the local rows, on the host.
  std::span<const int64_t> local_identities() const {
    const int64_t rows = local_tokens(), first = rows < tokens() ? tensor.rank() * rows : 0;
    return std::span(batch.host_rows).subspan(static_cast<size_t>(first), static_cast<size_t>(rows));
  }

  // Activations, and what norms and softmax must know of them.
  Tensor keep(Shape shape) { return saved.allocate(types.compute, shape); }
  Tensor keep_statistics(Shape shape) { return saved.allocate(types.statistics, shape); }
  Tensor temporary(Shape shape) { return scratch.allocate(types.compute, shape); }
  Tensor temporary_statistics(Shape shape) { return scratch.allocate(types.statistics, shape); }
  // What a backward's weight part needs of its input part: with `saved` where the parts are split.
  Tensor for_weights(Shape shape) { return splits_backward ? keep(shape) : temporary(shape); }
  // Where an activation goes that `selective` computes again: the caller gives scratch back.
  Tensor keep_unless_selective(Shape shape) { return is_selective() ? temporary(shape) : keep(shape); }
  bool is_selective() const { return recompute == config::Recompute::selective; }
  bool drops() const { return mode != Mode::evaluate && dropout > 0; }
  // The dropout of a site such as "layers.3.attention", on local rows.
  device::Dropout dropout_at(const std::string& site) const {
    return {.probability = drops() ? dropout : 0,
            .seed = seed,
            .stream = stream_of("dropout", site),
            .rows = tensor.local(batch.rows)};
  }
  void observe(const std::string& name, Tensor seen) const {
    if (observer != nullptr) (*observer)(name, seen);
  }
};

// The residual stream between layers: what stands in it, and the branch output that the next norm adds to it, so that
// the addition costs no pass over memory of its own.
struct Stream {
  Tensor residual;  // [T', H]
  Tensor branch;    // [T', H], one buffer for all layers
  bool has_branch = false;
  device::Dropout dropout;  // of the branch
};

}  // namespace quintet::model
