// The resolved configuration of a run: one member per YAML key, under the key's own name. Meaning, default, rule and
// resume class of each stand once, in keys.cpp; `quintet config explain KEY` shows them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "lib/mesh/mesh.h"

namespace quintet::config {

// Enumerators are spelled as in YAML, but for 1f1b and auto (automatic). name_of() in enums.h gives the spelling.
enum class DeviceKind { automatic, cpu, cuda };
enum class Norm { layernorm, rmsnorm };
enum class Activation { gelu, gelu_exact, swiglu, relu_squared };
enum class Position { learned, rope, none };
enum class RopeScalingKind { llama3 };
enum class Routing { learned, round_robin };
enum class MoeBalance { aux_loss, bias, none };
enum class PipelineSchedule { gpipe, one_f_one_b, interleaved, zero_bubble, zero_bubble_v };
enum class ContextMethod { ring, all_gather, ulysses };
enum class ContextBalance { zigzag, none };
enum class Recompute { none, selective, full };
enum class ComputeType { fp64, fp32, bf16 };
enum class GradientType { fp32, bf16 };
enum class Decay { constant, cosine, linear, wsd };
enum class DataFormat { automatic, text, jsonl, megatron, llmc, tokens };
enum class DataOrder { quintet, megatron };
enum class LogLevel { info, debug };
enum class OnNonFinite { stop, skip };

struct Run {
  std::string name;
  std::string dir;
  int64_t seed = 0;  // >= 0
  bool operator==(const Run&) const = default;
};

struct Mesh {
  int64_t dp = 1, tp = 1, pp = 1, ep = 1, cp = 1;  // dp resolved: their product is the number of ranks
  std::array<Axis, kAxisCount> order{};            // fastest-varying first
  PerAxis<int64_t> sizes() const;
  bool operator==(const Mesh&) const = default;
};

struct Device {
  DeviceKind kind{};                  // automatic stays: the devices decide when the run starts
  int64_t threads = 0;                // 0 = auto
  std::optional<double> peak_tflops;  // none = auto
  bool operator==(const Device&) const = default;
};

struct RopeScaling {
  RopeScalingKind kind{};
  double factor = 0, low_freq_factor = 0, high_freq_factor = 0;
  int64_t original_length = 0;
  bool operator==(const RopeScaling&) const = default;
};

struct Moe {
  int64_t experts = 0;
  int64_t top_k = 0;
  int64_t ffn_hidden_size = 0;
  int64_t every = 0;
  int64_t shared_experts = 0;
  bool normalize_top_k = false;
  Routing routing{};
  MoeBalance balance{};
  double bias_update_rate = 0, aux_loss_weight = 0, z_loss_weight = 0;
  std::optional<double> capacity_factor;  // none = dropless
  bool operator==(const Moe&) const = default;
};

struct Model {
  int64_t seq_length = 0;
  int64_t vocab_size = 0;  // resolved from the tokenizer
  int64_t layers = 0;
  int64_t hidden_size = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t ffn_hidden_size = 0;
  Norm norm{};
  double norm_epsilon = 0;
  Activation activation{};
  Position position{};
  double rope_theta = 0;
  std::optional<RopeScaling> rope_scaling;
  bool qk_norm = false;
  bool bias = false;
  bool qkv_bias = false;
  bool tie_embeddings = false;
  double dropout = 0;
  double init_std = 0;
  std::optional<Moe> moe;  // none = dense
  bool operator==(const Model&) const = default;
};

struct Pipeline {
  PipelineSchedule schedule{};
  int64_t virtual_stages = 1;
  std::optional<std::vector<int64_t>> layers_per_stage;  // none = as even as can be

  // zero_bubble_v always has two.
  int64_t stages_per_rank() const { return schedule == PipelineSchedule::zero_bubble_v ? 2 : virtual_stages; }
  bool operator==(const Pipeline&) const = default;
};

struct Context {
  ContextMethod method{};
  ContextBalance balance{};
  bool operator==(const Context&) const = default;
};

struct Zero {
  int64_t stage = 0;     // 0 .. 3
  double bucket_mb = 0;  // > 0, fractions allowed
  bool overlap = false;
  bool operator==(const Zero&) const = default;
};

struct Parallel {
  bool sequence_parallel = false;
  Pipeline pipeline;
  Context context;
  Zero zero;
  Recompute recompute{};
  bool operator==(const Parallel&) const = default;
};

struct Precision {
  ComputeType compute{};
  GradientType gradients{};
  bool operator==(const Precision&) const = default;
};

struct Train {
  int64_t steps = 0;
  int64_t global_batch_size = 0;  // sequences per optimizer step
  int64_t micro_batch_size = 0;   // sequences per microbatch per data rank
  int64_t eval_every = 0;         // 0 = only after the last step
  int64_t eval_steps = 0;
  double max_seconds = 0;  // 0 = no limit
  bool operator==(const Train&) const = default;
};

struct Optimizer {
  double learning_rate = 0;
  std::array<double, 2> betas{};
  double epsilon = 0;
  double weight_decay = 0;
  double clip_grad_norm = 0;  // 0 or infinity = off
  bool clips() const;
  bool operator==(const Optimizer&) const = default;
};

struct Schedule {
  int64_t warmup_steps = 0;
  Decay decay{};
  int64_t decay_steps = 0;
  double min_learning_rate = 0;
  bool operator==(const Schedule&) const = default;
};

struct DataSource {
  std::string path;              // file, folder or glob
  std::optional<double> weight;  // all entries of a list have one, or none has
  bool operator==(const DataSource&) const = default;
};

// Nothing, the last part of each training source, or sources of its own.
using Validation = std::variant<std::monostate, double, std::vector<DataSource>>;

struct Data {
  std::vector<DataSource> train;
  Validation validation;
  DataFormat format{};
  DataOrder order{};
  std::optional<std::string> split;
  std::string tokenizer;  // "bytes" or a file
  bool shuffle = false;
  bool document_mask = false;
  bool mask_end_of_document = false;
  std::optional<int64_t> end_of_document;  // none = the tokenizer's, where it has one
  bool operator==(const Data&) const = default;
};

struct Checkpoint {
  int64_t every = 0;  // 0 = only at the end
  int64_t keep = 0;
  bool async = false;
  std::string resume;  // "auto", "never" or a checkpoint's folder
  std::optional<std::string> init_from;
  bool operator==(const Checkpoint&) const = default;
};

struct Logging {
  LogLevel level{};
  int64_t every = 0;
  bool tensorboard = false;
  std::vector<int64_t> trace_steps;  // empty, or first and last
  std::vector<int64_t> gradient_dump_steps;
  std::vector<int64_t> weight_dump_steps;
  bool operator==(const Logging&) const = default;
};

struct Fault {
  OnNonFinite on_non_finite{};
  int64_t max_skipped_steps = 0;
  double spike_sigma = 0;            // 0 = off
  int64_t check_replicas_every = 0;  // 0 = never
  double watchdog_seconds = 0;       // > 0
  bool operator==(const Fault&) const = default;
};

struct Config {
  Run run;
  Mesh mesh;
  Device device;
  Model model;
  Parallel parallel;
  Precision precision;
  Train train;
  Optimizer optimizer;
  Schedule schedule;
  Data data;
  Checkpoint checkpoint;
  Logging logging;
  Fault fault;

  // Whether the first and the last pipeline stage lie on different ranks.
  bool pipeline_ends_apart() const {
    return mesh.pp > 1 && parallel.pipeline.schedule != PipelineSchedule::zero_bubble_v;
  }
  bool operator==(const Config&) const = default;
};

}  // namespace quintet::config
