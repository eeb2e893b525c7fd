// A mixture of experts in the place of an MLP (Shazeer et al. 2017): each row's output is the weighted sum of the
// experts that its router chose, plus shared experts that see every row.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "lib/config/config.h"
#include "lib/model/feed_forward.h"
#include "lib/model/mlp.h"
#include "lib/model/router.h"

namespace quintet::model {

// R: rows that arrive for this rank's experts.
struct MoeSaved {
  RouterSaved router;
  parallel::ExpertDispatch::Plan plan;
  Tensor received;                        // [R, H]
  Tensor returned;                        // [slots, H]: what the experts made of this rank's slots
  std::vector<FeedForwardSaved> experts;  // of this rank
  std::vector<MlpSaved> shared;
};

// What the weight part needs of the input part.
struct MoeGradients {
  Tensor d_logits;                            // of the router
  Tensor d_received;                          // [R, H]
  std::vector<FeedForwardGradients> experts;  // of this rank
  std::vector<MlpGradients> shared;
};

class Moe {
 public:
  // `name` is "layers.I.moe". Registers the router, the experts of this rank and the shared experts.
  Moe(parallel::ParameterStore& store, std::string name, int64_t layer, const config::Config& config);

  // x: [T', H], kept by the caller; output: [T', H], not written when recomputing.
  void forward(Pass& pass, Tensor x, Tensor output, MoeSaved& saved) const;
  // Both parts, the experts' weights while the rows' gradients travel; or, where the parts are split, the input part.
  // d_output: [T', H], lives until the weight part; d_x: [T', H].
  MoeGradients backward(Pass& pass, Tensor d_output, Tensor d_x, const MoeSaved& saved) const;
  // The weight part of a backward whose parts are split.
  void backward_weight(Pass& pass, const MoeSaved& saved, MoeGradients& gradients) const;

  const parallel::Unit& experts_unit() const { return *experts_unit_; }
  const Router& router() const { return router_; }

 private:
  // Calls f(expert, first row, rows) for this rank's experts that have rows.
  template <typename Function>
  void for_experts(const parallel::ExpertDispatch::Plan& plan, const Function& f) const;

  // Backward of router and experts of this rank, or of their input parts; what it allocates lives in scratch after it.
  void routed_backward(Pass& pass, Tensor d_output, Tensor d_x, const MoeSaved& saved, MoeGradients& gradients) const;
  // rows, d_rows: [W, H], those that arrived and the gradients of their outputs, by expert.
  void experts_backward_weight(Pass& pass, Tensor rows, Tensor d_rows, const MoeSaved& saved,
                               const MoeGradients& gradients) const;

  std::string name_;
  Router router_;
  const parallel::Unit* experts_unit_;
  std::vector<FeedForward> experts_;
  std::deque<Mlp> shared_;
};

}  // namespace quintet::model
