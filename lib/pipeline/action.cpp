#include "lib/pipeline/action.h"

#include <string_view>

#include <fmt/core.h>

#include "lib/base/error.h"
#include "lib/base/integers.h"

namespace quintet::pipeline {
namespace {

using Kind = Action::Kind;

std::string_view name_of(Kind kind) {
  switch (kind) {
    case Kind::forward: return "forward";
    case Kind::backward: return "backward";
    case Kind::backward_input: return "input part of the backward";
    case Kind::backward_weight: return "weight part of the backward";
    case Kind::receive_activation: return "activation receive";
    case Kind::send_activation: return "activation send";
    case Kind::receive_gradient: return "gradient receive";
    case Kind::send_gradient: return "gradient send";
  }
  QUINTET_CHECK(false, "unknown kind of action");
}

std::string_view letter_of(Kind kind) {
  switch (kind) {
    case Kind::forward: return "F";
    case Kind::backward: return "B";
    case Kind::backward_input: return "I";
    case Kind::backward_weight: return "W";
    case Kind::receive_activation: return "<a";
    case Kind::send_activation: return ">a";
    case Kind::receive_gradient: return "<g";
    case Kind::send_gradient: return ">g";
  }
  QUINTET_CHECK(false, "unknown kind of action");
}

}  // namespace

std::string to_string(const Action& action) {
  return fmt::format("{} of microbatch {} on stage {}", name_of(action.kind), action.microbatch, action.stage);
}

std::string symbol(const Action& action) {
  return fmt::format("{}{}.{}", letter_of(action.kind), action.stage, action.microbatch);
}

int64_t peer_stage(const Action& transfer) {
  QUINTET_CHECK(!transfer.computes(), "{} is no transfer", to_string(transfer));
  const bool next = transfer.kind == Kind::send_activation || transfer.kind == Kind::receive_gradient;
  return transfer.stage + (next ? 1 : -1);
}

uint16_t channel_of(const Action& transfer) {
  const bool receives = transfer.kind == Kind::receive_activation || transfer.kind == Kind::receive_gradient;
  const bool gradient = transfer.kind == Kind::receive_gradient || transfer.kind == Kind::send_gradient;
  const int64_t receiver = receives ? transfer.stage : peer_stage(transfer);
  return narrow<uint16_t>(2 * receiver + (gradient ? 2 : 1));
}

int64_t StagePlacement::rank_of(int64_t stage) const {
  const int64_t place = stage % ranks;
  return shape == Shape::vee && chunk_of(stage) == 1 ? ranks - 1 - place : place;
}

std::vector<int64_t> StagePlacement::stages_of(int64_t rank) const {
  std::vector<int64_t> held;
  for (int64_t stage = 0; stage < stages(); ++stage)
    if (rank_of(stage) == rank) held.push_back(stage);
  return held;
}

}  // namespace quintet::pipeline
