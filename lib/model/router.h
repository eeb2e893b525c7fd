// The router of an MoE layer: which experts each row goes to and with what weight, computed in the type of statistics;
// and what keeps experts equally busy (Fedus et al. 2021, section 2.2; Zoph et al. 2022, section 3; Wang et al. 2024).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/config/config.h"
#include "lib/model/pass.h"
#include "lib/model/routing.h"
#include "lib/parallel/parameter_store.h"

namespace quintet::model {

// Rows are this rank's T'; loads are those of whole sequences.
struct RouterSaved {
  Tensor input;                       // [T', H]
  Tensor probabilities, log_sum_exp;  // [T', E], [T']
  Tensor experts, weights;            // [T', K]
  Tensor loads;                       // [B, E]: slots of each sequence, before drops; not in evaluation
  LayerRouting counted;               // in training; nothing on a rank whose rows another one counts
};

class Router {
 public:
  // Registers `name`.weight [E, H] and, where biases balance, `name`.balance_bias [E].
  Router(parallel::ParameterStore& store, std::string name, int64_t layer, const config::Config& config);

  // x: [T', H], kept by the caller. Returns the choices on the host, [T', K], kDropped past an expert's capacity.
  std::vector<int32_t> forward(Pass& pass, Tensor x, RouterSaved& saved) const;
  // d_x: [T', H], written, in the type of statistics. Returns the gradient of the logits for the weight part.
  Tensor backward_input(Pass& pass, Tensor d_weights, Tensor d_x, const RouterSaved& saved) const;
  void backward_weight(Pass& pass, Tensor d_logits, const RouterSaved& saved) const;

  // Moves the balance biases by a step's loads, [MoE layers of the model, E].
  void balance(device::Device& device, std::span<const int64_t> loads) const;

 private:
  // The loads of the microbatch's sequences over all ranks that hold parts of them, [B, E].
  Tensor sequence_loads(Pass& pass, std::span<const int32_t> choices, std::span<const int64_t> identities) const;
  // Marks slots past an expert's capacity for a sequence. Slots claim by position, then by choice.
  void drop_excess(Pass& pass, std::span<int32_t> choices, std::span<const int64_t> identities) const;

  std::string name_;
  int64_t layer_, ordinal_;  // ordinal among MoE layers
  const config::Moe config_;
  int64_t capacity_;  // 0: none
  int64_t sequence_length_;
  double balance_scale_, z_scale_;
  const parallel::Parameter* weight_;
  const parallel::Parameter* balance_bias_ = nullptr;
};

}  // namespace quintet::model
