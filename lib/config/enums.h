// Spellings of the enumerations of a config.
#pragma once

#include <array>
#include <string_view>

#include "lib/config/config.h"

namespace quintet::config {

// Spellings in the order of the enumerators.
template <typename E>
struct Spelling;

#define QUINTET_SPELLING(Enum, count, ...)                                      \
  template <>                                                                   \
  struct Spelling<Enum> {                                                       \
    static constexpr std::array<std::string_view, count> names = {__VA_ARGS__}; \
  };
QUINTET_SPELLING(DeviceKind, 3, "auto", "cpu", "cuda")
QUINTET_SPELLING(Norm, 2, "layernorm", "rmsnorm")
QUINTET_SPELLING(Activation, 4, "gelu", "gelu_exact", "swiglu", "relu_squared")
QUINTET_SPELLING(Position, 3, "learned", "rope", "none")
QUINTET_SPELLING(RopeScalingKind, 1, "llama3")
QUINTET_SPELLING(Routing, 2, "learned", "round_robin")
QUINTET_SPELLING(MoeBalance, 3, "aux_loss", "bias", "none")
QUINTET_SPELLING(PipelineSchedule, 5, "gpipe", "1f1b", "interleaved", "zero_bubble", "zero_bubble_v")
QUINTET_SPELLING(ContextMethod, 3, "ring", "all_gather", "ulysses")
QUINTET_SPELLING(ContextBalance, 2, "zigzag", "none")
QUINTET_SPELLING(Recompute, 3, "none", "selective", "full")
QUINTET_SPELLING(ComputeType, 3, "fp64", "fp32", "bf16")
QUINTET_SPELLING(GradientType, 2, "fp32", "bf16")
QUINTET_SPELLING(Decay, 4, "constant", "cosine", "linear", "wsd")
QUINTET_SPELLING(DataFormat, 6, "auto", "text", "jsonl", "megatron", "llmc", "tokens")
QUINTET_SPELLING(DataOrder, 2, "quintet", "megatron")
QUINTET_SPELLING(LogLevel, 2, "info", "debug")
QUINTET_SPELLING(OnNonFinite, 2, "stop", "skip")
QUINTET_SPELLING(Axis, kAxisCount, "dp", "tp", "pp", "ep", "cp")
#undef QUINTET_SPELLING

template <typename E>
  requires requires { Spelling<E>::names; }
constexpr std::string_view name_of(E value) { return Spelling<E>::names[static_cast<size_t>(value)]; }

}  // namespace quintet::config
