// The one place where keys are declared; everything that is known of them comes from here. Adding a key is one entry,
// and its member in config.h.
#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>

#include "lib/base/error.h"
#include "lib/config/codec.h"
#include "lib/config/declaration.h"

namespace quintet::config {
namespace {

constexpr ResumeClass kFixed = ResumeClass::fixed;
constexpr ResumeClass kNoted = ResumeClass::noted;
constexpr ResumeClass kFree = ResumeClass::free;

// "model.moe.top_k" of the C++ expression "model.moe->top_k".
std::string path_of(std::string_view member) {
  std::string path;
  for (const char c : member) {
    if (c != '-') path += c == '>' ? '.' : c;
  }
  return path;
}

// What a declaration says in words.
Key described(std::string_view member, std::string_view default_text, const Rule& rule, ResumeClass resume,
              std::string_view help) {
  Key key;
  key.path = path_of(member);
  key.default_text = std::string(default_text);
  key.rule = rule;
  key.resume = resume;
  key.help = std::string(help);
  if (!key.required()) {
    Problems problems;
    const bool parsed = parse_yaml(key.default_text, problems.add_source(key.path), problems, key.default_node);
    QUINTET_CHECK(parsed && problems.empty(), "default of {}", key.path);
  }
  return key;
}

// `access` gives the member of a Config, const or not.
template <typename Access>
Key accessed(Key key, Access access) {
  using Value = std::remove_reference_t<decltype(access(std::declval<Config&>()))>;
  key.kind = kKindOf<Value>;
  key.choices = choices_of<Value>();
  key.read = [access](const Key& self, const Node& node, Problems& problems, Config& config) {
    return read(node, Reading{self, problems}, access(config));
  };
  key.write = [access, rule = key.rule](const Config& config) { return write(access(config), rule); };
  return key;
}

template <typename Derive>
Key derived(Key key, Derive derive) {
  key.derive = derive;
  return key;
}

// a * b, or the largest integer where that overflows.
int64_t times(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<int64_t>::max() : product;
}

// The last step, or the one after warm-up where the run is all warm-up: what a resolved config says can be read again.
int64_t end_of_decay(const Config& config) {
  const int64_t warmup = config.schedule.warmup_steps;
  if (warmup < config.train.steps || warmup == std::numeric_limits<int64_t>::max()) return config.train.steps;
  return warmup + 1;
}

// The member's name is the key's path, so the two cannot differ: this needs the preprocessor.
#define KEY(member, default_text, ...) \
  accessed(                            \
      described(#member, default_text, __VA_ARGS__), [](auto& config) -> auto& { return config.member; })
// The default is an expression over `c`, a Config whose other keys are set; default_text says it in words.
#define DERIVED(member, default_text, expression, ...) \
  derived(KEY(member, default_text, __VA_ARGS__), [](Config& c) { c.member = expression; })

std::vector<Key> declare_keys() {
  return {
      KEY(run.name, "-", text(TextRule::folder_name), kFree, "name of the run; its output folder is run.dir/run.name"),
      KEY(run.dir, "runs", any(), kFree, "folder of all runs"),
      KEY(run.seed, "1234", at_least(0), kFixed, "seed of initial weights, dropout and shuffling"),

      KEY(mesh.dp, "auto", size(1).or_auto(), kFree, "data-parallel replicas; auto = ranks / (tp*pp*ep*cp)"),
      KEY(mesh.tp, "1", size(1), kFree, "ranks that split heads, MLP columns and the vocabulary"),
      KEY(mesh.pp, "1", size(1), kFree, "pipeline stages, which split the layers"),
      KEY(mesh.ep, "1", size(1), kFree, "ranks that split the experts; a further data axis elsewhere"),
      KEY(mesh.cp, "1", size(1), kFree, "ranks that split each sequence"),
      KEY(mesh.order, "[tp, cp, ep, dp, pp]", any(), kFree,
          "axes from the fastest-varying: neighbours along the first are adjacent ranks"),

      KEY(device.kind, "auto", any(), kFree, "where a rank computes; auto = cuda if a device is visible"),
      KEY(device.threads, "auto", from_to(1, 1024).or_auto(), kFree,
          "CPU threads of a rank; auto = its share of the usable CPUs, at least 1"),
      KEY(device.peak_tflops, "auto", above(0).or_auto(), kFree,
          "peak of a rank in TFLOP/s at precision.compute, for MFU; auto = known GPUs, else unknown"),

      KEY(model.seq_length, "-", size(1), kFixed, "tokens of a sequence"),
      KEY(model.vocab_size, "auto", size(1).or_auto(), kFixed, "token ids; auto = the tokenizer's"),
      KEY(model.layers, "-", from_to(1, 16384), kFixed, "transformer layers"),
      KEY(model.hidden_size, "-", size(1), kFixed, "width of the residual stream"),
      KEY(model.heads, "-", size(1), kFixed, "query heads"),
      DERIVED(model.kv_heads, "heads", c.model.heads, size(1), kFixed,
              "key and value heads; fewer than heads is grouped-query attention"),
      DERIVED(model.head_dim, "hidden_size / heads", c.model.hidden_size / std::max<int64_t>(1, c.model.heads), size(1),
              kFixed, "width of a head"),
      DERIVED(model.ffn_hidden_size, "4 * hidden_size", times(4, c.model.hidden_size), size(1), kFixed,
              "width of the MLP"),
      KEY(model.norm, "layernorm", any(), kFixed, "norm before attention and MLP, and once at the end"),
      KEY(model.norm_epsilon, "1.0e-5", above(0), kFixed, "added to the variance in a norm"),
      KEY(model.activation, "gelu", any(), kFixed, "activation of the MLP; gelu is the tanh form"),
      KEY(model.position, "learned", any(), kFixed, "position encoding; learned = a table of seq_length rows"),
      KEY(model.rope_theta, "10000.0", above(0), kFixed, "base of the rotary frequencies"),
      KEY(model.rope_scaling->kind, "-", any(), kFixed, "how rotary frequencies are scaled"),
      KEY(model.rope_scaling->factor, "-", at_least(1), kFixed, "by what low frequencies are divided"),
      KEY(model.rope_scaling->low_freq_factor, "-", above(0), kFixed,
          "wavelengths above original_length / this are scaled whole"),
      KEY(model.rope_scaling->high_freq_factor, "-", above(0), kFixed,
          "wavelengths below original_length / this are kept"),
      KEY(model.rope_scaling->original_length, "-", size(1), kFixed, "sequence length that was trained before scaling"),
      KEY(model.qk_norm, "false", any(), kFixed, "RMS norm of queries and keys, before rope"),
      KEY(model.bias, "true", any(), kFixed, "biases of q, k, v, output, MLP, experts and layernorm"),
      DERIVED(model.qkv_bias, "bias", c.model.bias, any(), kFixed, "biases of q, k and v"),
      KEY(model.tie_embeddings, "true", any(), kFixed, "the head shares the embedding's weight"),
      KEY(model.dropout, "0.0", from_to_below(0, 1), kFixed,
          "dropout after embedding, attention output and MLP output"),
      KEY(model.init_std, "0.02", at_least(0), kFixed, "standard deviation of initial weights"),
      KEY(model.moe->experts, "-", from_to(1, 16384), kFixed, "experts of an MoE layer"),
      KEY(model.moe->top_k, "2", size(1), kFixed, "experts that a token goes to"),
      DERIVED(model.moe->ffn_hidden_size, "model.ffn_hidden_size", c.model.ffn_hidden_size, size(1), kFixed,
              "width of an expert"),
      KEY(model.moe->every, "1", size(1), kFixed, "layer i (from 0) is MoE when (i + 1) mod every = 0"),
      KEY(model.moe->shared_experts, "0", from_to(0, 16384), kFixed, "experts that every token goes to"),
      KEY(model.moe->normalize_top_k, "true", any(), kFixed, "the chosen experts' weights are scaled to the sum 1"),
      KEY(model.moe->routing, "learned", any(), kFixed, "who chooses; round_robin is for benchmarks and proofs"),
      KEY(model.moe->balance, "aux_loss", any(), kFixed, "how experts are kept equally busy; bias is loss-free"),
      KEY(model.moe->bias_update_rate, "1.0e-3", at_least(0), kFixed, "step of the balance biases"),
      KEY(model.moe->aux_loss_weight, "0.01", at_least(0), kFixed, "weight of the balance loss"),
      KEY(model.moe->z_loss_weight, "0.0", at_least(0), kFixed, "weight of the router's z-loss"),
      KEY(model.moe->capacity_factor, "null", above(0).or_null(), kFixed,
          "room of an expert, in equal shares of a sequence's slots; null = dropless"),

      KEY(parallel.sequence_parallel, "true", any(), kFree,
          "where tp > 1, norms, dropout and residual are split along the sequence"),
      KEY(parallel.pipeline.schedule, "1f1b", any(), kFree, "order of forwards and backwards"),
      KEY(parallel.pipeline.virtual_stages, "1", size(1), kFree,
          "stages of a rank, for interleaved; zero_bubble_v has 2"),
      KEY(parallel.pipeline.layers_per_stage, "null", size(0).or_null(), kFree,
          "layers of each stage in pipeline order; null = as even as can be, embedding and head counted"),
      KEY(parallel.context.method, "ring", any(), kFree, "how attention reaches other ranks' keys and values"),
      KEY(parallel.context.balance, "zigzag", any(), kFree,
          "how a sequence is dealt out, so that ranks are equally busy"),
      KEY(parallel.zero.stage, "1", from_to(0, 3), kFree,
          "what data ranks split: 0 nothing, 1 optimizer state, 2 + gradients, 3 + parameters"),
      KEY(parallel.zero.bucket_mb, "32", above_to(0, 1048576), kFree, "MiB of gradients that are reduced at once"),
      KEY(parallel.zero.overlap, "true", any(), kFree, "reduce while the backward pass goes on"),
      KEY(parallel.recompute, "none", any(), kFree,
          "activations that backward computes again; selective = attention core and activation function"),

      KEY(precision.compute, "fp32", any(), kFixed, "type of weights and activations in computation"),
      KEY(precision.gradients, "fp32", any(), kNoted, "type in which gradients are added and reduced"),

      KEY(train.steps, "-", at_least(1), kNoted, "optimizer steps"),
      KEY(train.global_batch_size, "-", size(1), kNoted, "sequences of an optimizer step"),
      KEY(train.micro_batch_size, "1", size(1), kNoted, "sequences of a microbatch on a data rank"),
      KEY(train.eval_every, "0", at_least(0), kFree, "steps between evaluations; 0 = only after the last step"),
      KEY(train.eval_steps, "20", size(1), kFree, "global batches of an evaluation, at most"),
      KEY(train.max_seconds, "0", at_least(0), kFree, "> 0: save and exit 0 after so many seconds"),

      KEY(optimizer.learning_rate, "-", at_least(0), kNoted, "peak learning rate"),
      KEY(optimizer.betas, "[0.9, 0.95]", from_to_below(0, 1), kNoted, "decay of AdamW's two moments"),
      KEY(optimizer.epsilon, "1.0e-8", above(0), kNoted, "added to the root of the second moment"),
      KEY(optimizer.weight_decay, "0.1", at_least(0), kNoted, "decoupled decay of weight matrices and embeddings"),
      KEY(optimizer.clip_grad_norm, "1.0",
          at_least(0).or_infinity().with_note("write 0 or .inf to switch clipping off"), kNoted,
          "largest global gradient norm; 0 or .inf = off"),

      KEY(schedule.warmup_steps, "0", at_least(0), kNoted, "steps of linear warm-up"),
      KEY(schedule.decay, "cosine", any(), kNoted,
          "shape after warm-up; wsd = constant, then linear in the last fifth"),
      DERIVED(
          schedule.decay_steps, "train.steps", end_of_decay(c), at_least(1), kNoted,
          "step at which the decay ends; must exceed warmup_steps unless constant; if not given and warm-up lasts as "
          "long as the run, the step after warm-up, which the run does not reach"),
      KEY(schedule.min_learning_rate, "0.0", at_least(0), kNoted, "learning rate at the end of the decay"),

      KEY(data.train, "-", any(), kFixed, "training data: files, folders or globs, with or without weights"),
      KEY(data.validation, "null", any().or_null(), kFixed,
          "validation data, or a fraction: the last part of each training source"),
      KEY(data.format, "auto", any(), kFixed, "format of the files; tokens = plain uint16"),
      KEY(data.order, "quintet", any(), kFixed, "order of samples; megatron = Megatron-LM's, bit for bit"),
      KEY(data.split, "null", text(TextRule::split).or_null(), kFixed,
          "shares of training, validation and test, with order megatron"),
      KEY(data.tokenizer, "bytes", any(), kFixed,
          "bytes (256 ids), a SentencePiece .model file or a Hugging Face tokenizer.json"),
      KEY(data.shuffle, "true", any(), kFixed, "draw windows in a keyed random order in each epoch"),
      KEY(data.document_mask, "false", any(), kFixed, "attention and positions do not cross document ends"),
      KEY(data.mask_end_of_document, "false", any(), kFixed,
          "the prediction made from an end-of-document token does not count in the loss"),
      KEY(data.end_of_document, "null", at_least(0).or_null(), kFixed,
          "token that ends a document, as the end of a file does, where the tokenizer (bytes) has none of its own; 37 "
          "is the "
          "% between fortunes"),

      KEY(checkpoint.every, "0", at_least(0), kFree, "steps between checkpoints; 0 = only at the end"),
      KEY(checkpoint.keep, "2", size(1), kFree, "newest checkpoints that are kept"),
      KEY(checkpoint.async, "true", any(), kFree, "train on while a checkpoint is written"),
      KEY(checkpoint.resume, "auto", any(), kFree,
          "auto (the newest whole checkpoint of the run), never (refuses a used folder) or a checkpoint's folder"),
      KEY(checkpoint.init_from, "null", any().or_null(), kFree, "Hugging Face model folder to start from"),

      KEY(logging.level, "info", any(), kFree, "debug also writes a log of every rank"),
      KEY(logging.every, "1", size(1), kFree, "steps between lines on the console"),
      KEY(logging.tensorboard, "true", any(), kFree, "write TensorBoard events"),
      KEY(logging.trace_steps, "[]", at_least(1), kFree, "first and last step of the timeline; [] = none"),
      KEY(logging.gradient_dump_steps, "[]", at_least(1), kFree,
          "steps whose full gradients are written, before clipping"),
      KEY(logging.weight_dump_steps, "[]", at_least(0), kFree,
          "steps after which full weights are written; 0 = initial"),

      KEY(fault.on_non_finite, "stop", any(), kFree, "on a loss or norm that is not finite; skip drops the step"),
      KEY(fault.max_skipped_steps, "10", at_least(0), kFree, "skipped steps in a row that end the run when exceeded"),
      KEY(fault.spike_sigma, "0", at_least(0), kFree,
          "> 0: skip a step whose grad_norm is so many deviations above the mean of the last 100"),
      KEY(fault.check_replicas_every, "0", at_least(0), kFree,
          "steps between comparisons of replicated weights; 0 = never"),
      KEY(fault.watchdog_seconds, "600", above(0), kFree, "a rank without progress for so long ends the run"),
  };
}

// A section that is there or not, with the std::optional member that says so.
template <typename Access>
Section optional_section(std::string path, std::string help, Access access) {
  return {std::move(path), std::move(help), [access](const Config& config) { return access(config).has_value(); },
          [access](Config& config) { access(config).emplace(); }};
}

std::vector<Section> declare_sections() {
  return {
      {"run", "what the run is called", {}, {}},
      {"mesh", "ranks along each axis; dp*tp*pp*ep*cp must equal the number of ranks", {}, {}},
      {"device", "what a rank computes on", {}, {}},
      {"model", "the transformer", {}, {}},
      optional_section(
          "model.rope_scaling", "scaling of rotary positions; null or absent = none",
          [](auto& config) -> auto& { return config.model.rope_scaling; }),
      optional_section(
          "model.moe", "mixture of experts; null or absent = dense",
          [](auto& config) -> auto& { return config.model.moe; }),
      {"parallel", "how the axes are used", {}, {}},
      {"parallel.pipeline", "pipeline parallelism", {}, {}},
      {"parallel.context", "context parallelism", {}, {}},
      {"parallel.zero", "optimizer state split over data ranks", {}, {}},
      {"precision", "number types", {}, {}},
      {"train", "length and batch sizes", {}, {}},
      {"optimizer", "AdamW", {}, {}},
      {"schedule", "learning rate over time", {}, {}},
      {"data", "what is read", {}, {}},
      {"checkpoint", "saving and resuming", {}, {}},
      {"logging", "what is written about the run", {}, {}},
      {"fault", "what happens when something goes wrong", {}, {}},
  };
}

}  // namespace

const std::vector<Key>& keys() {
  static const std::vector<Key> all = declare_keys();
  return all;
}

const std::vector<Section>& sections() {
  static const std::vector<Section> all = declare_sections();
  return all;
}

std::vector<std::string> key_paths() {
  std::vector<std::string> paths;
  for (const Key& key : keys()) paths.push_back(key.path);
  return paths;
}

}  // namespace quintet::config
