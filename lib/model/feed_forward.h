// The arithmetic of a feed-forward layer on rows that are all there: y = down(activation(up x)), or down(silu(gate x) *
// up x) for swiglu (Shazeer 2020). Split by columns, then rows, over tp; the dense MLP and every expert are one.
#pragma once

#include <string>

#include "lib/config/config.h"
#include "lib/model/linear.h"

namespace quintet::model {

// F is this rank's share of the inner width; T any number of rows.
struct FeedForwardSaved {
  Tensor gate, up;  // [T, F]: before the activation; gate with swiglu only
  Tensor hidden;    // [T, F]: after it; not kept under selective recomputation

  // Those of a run of rows.
  FeedForwardSaved rows(int64_t first, int64_t count) const;
};
struct FeedForwardGradients {
  Tensor gate, up;  // [T, F]

  FeedForwardGradients rows(int64_t first, int64_t count) const;
};

class FeedForward {
 public:
  FeedForward() = default;
  // Registers `name`.{gate,up,down}. `inner` is the whole inner width.
  FeedForward(parallel::ParameterStore& store, const std::string& name, const config::Model& config, int64_t inner,
              parallel::Placement along_ep = parallel::Placement::parts());

  // Memory for what a forward of `rows` rows keeps, and for what its backward leaves to the weight part.
  FeedForwardSaved make_saved(Pass& pass, int64_t rows) const;
  FeedForwardGradients make_gradients(Pass& pass, int64_t rows) const;

  // x: [T, H] to hidden. What is not kept lies in scratch, which the caller gives back.
  void expand(Pass& pass, Tensor x, FeedForwardSaved& saved) const;
  // hidden to output: [T, H], this rank's part of a sum over tp.
  void contract(Pass& pass, Tensor output, const FeedForwardSaved& saved) const;
  // d_output: [T, H], whole; d_x: [T, H], this rank's part of a sum over tp.
  void backward_input(Pass& pass, Tensor d_output, Tensor d_x, const FeedForwardSaved& saved,
                      const FeedForwardGradients& gradients) const;
  void backward_weight(Pass& pass, Tensor x, Tensor d_output, const FeedForwardSaved& saved,
                       const FeedForwardGradients& gradients) const;

 private:
  void activate(Pass& pass, const FeedForwardSaved& saved, Tensor hidden) const;

  bool gated_ = false;
  device::Activation activation_ = device::Activation::none;
  Linear gate_, up_, down_;
};

}  // namespace quintet::model
