// Rules over several keys. Each names both numbers and what would be legal.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "lib/config/declaration.h"
#include "lib/config/enums.h"
#include "lib/config/review.h"

namespace quintet::config {
namespace {

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

// The most elements of a tensor: their bytes and offsets stay far within 64 bits.
constexpr int64_t kMostElements = int64_t{1} << 50;

// The smallest epsilon that keeps its place in fp32 beside the root of a second moment of 0.
constexpr double kLeastFp32Epsilon = 1e-30;

// The product of non-negative factors, or kHuge where it overflows.
int64_t product(std::initializer_list<int64_t> factors) {
  int64_t result = 1;
  for (const int64_t factor : factors) {
    if (__builtin_mul_overflow(result, factor, &result)) return kHuge;
  }
  return result;
}

// Up to eight of the divisors of n that are legal, those around `near`.
std::vector<int64_t> divisors(int64_t n, int64_t near, const std::function<bool(int64_t)>& legal) {
  constexpr size_t kMost = 8;
  std::vector<int64_t> all;
  for (int64_t d = 1; d <= n / d; ++d) {
    if (n % d != 0) continue;
    if (legal(d)) all.push_back(d);
    if (d != n / d && legal(n / d)) all.push_back(n / d);
  }
  std::sort(all.begin(), all.end());
  const size_t place = static_cast<size_t>(std::lower_bound(all.begin(), all.end(), near) - all.begin());
  const size_t first =
      all.size() <= kMost ? 0 : std::min(place > kMost / 2 ? place - kMost / 2 : 0, all.size() - kMost);
  const size_t last = std::min(all.size(), first + kMost);
  return {all.begin() + static_cast<std::ptrdiff_t>(first), all.begin() + static_cast<std::ptrdiff_t>(last)};
}

std::string choose_divisor(int64_t n, int64_t near) {
  return fmt::format("choose {}", either(divisors(n, near, [](int64_t) { return true; })));
}

// "choose 32 or 36": the multiples of `unit` next to n.
std::string choose_multiple(int64_t n, int64_t unit) {
  const int64_t below = n / unit * unit;
  if (below == 0) return fmt::format("choose {}", unit);
  if (below > kHuge - unit) return fmt::format("choose {}", below);
  return fmt::format("choose {} or {}", below, below + unit);
}

// "1", "1 to 4".
std::string up_to(int64_t most) { return most <= 1 ? "1" : fmt::format("1 to {}", most); }

void check_mesh(Review& review, int64_t ranks) {
  if (!review.sound({"mesh.dp", "mesh.tp", "mesh.pp", "mesh.ep", "mesh.cp"}) || ranks == 0) return;
  const Mesh& mesh = review.config.mesh;
  const int64_t others = product({mesh.tp, mesh.pp, mesh.ep, mesh.cp});
  if (ranks % others != 0) {
    const std::string_view blamed = mesh.tp > 1   ? "mesh.tp"
                                    : mesh.pp > 1 ? "mesh.pp"
                                    : mesh.ep > 1 ? "mesh.ep"
                                                  : "mesh.cp";
    review.problem({blamed},
                   "tp*pp*ep*cp = {}*{}*{}*{} = {} does not divide the number of ranks ({}); choose axes whose product "
                   "does, or start {} ranks",
                   mesh.tp, mesh.pp, mesh.ep, mesh.cp, others, ranks, product({mesh.dp, others}));
  } else if (product({mesh.dp, others}) != ranks) {
    review.problem({"mesh.dp"},
                   "{} makes dp*tp*pp*ep*cp = {}*{}*{}*{}*{} = {}, but there are {} ranks; choose {} or auto, or start "
                   "{} ranks",
                   mesh.dp, mesh.dp, mesh.tp, mesh.pp, mesh.ep, mesh.cp, product({mesh.dp, others}), ranks,
                   ranks / others, product({mesh.dp, others}));
  }
}

void check_heads(Review& review) {
  const Model& model = review.config.model;
  if (review.sound({"model.heads", "model.kv_heads"}) && model.heads % model.kv_heads != 0) {
    review.problem({"model.kv_heads", "model.heads"}, "{} does not divide model.heads ({}); {}", model.kv_heads,
                   model.heads, choose_divisor(model.heads, model.kv_heads));
  }
  if (!review.is_given("model.head_dim") && review.sound({"model.hidden_size", "model.heads"}) &&
      model.hidden_size % model.heads != 0) {
    const int64_t unit = model.position == Position::rope ? product({2, model.heads}) : model.heads;  // pairs turn
    review.problem({"model.hidden_size"}, "{} is not a multiple of model.heads ({}); {}, or give model.head_dim",
                   model.hidden_size, model.heads, choose_multiple(model.hidden_size, unit));
    review.mark_unsound("model.head_dim");
  }
  if (model.position == Position::rope && review.sound({"model.head_dim", "model.position"}) &&
      model.head_dim % 2 != 0) {
    review.problem({"model.head_dim", "model.hidden_size"}, "{} is odd, but model.position rope turns pairs; {}",
                   model.head_dim, choose_multiple(model.head_dim, 2));
  }
}

void check_tensor_parallel(Review& review) {
  const Config& config = review.config;
  const Model& model = config.model;
  const int64_t tp = config.mesh.tp;
  if (!review.sound({"mesh.tp", "model.heads"})) return;
  const bool has_kv = review.sound({"model.kv_heads"});
  const bool has_ffn = review.sound({"model.ffn_hidden_size"});
  const bool has_expert_ffn = model.moe && review.sound({"model.moe.ffn_hidden_size"});
  const bool splits_sequence = config.parallel.sequence_parallel &&
                               review.sound({"parallel.sequence_parallel", "model.seq_length", "mesh.cp"}) &&
                               model.seq_length % config.mesh.cp == 0;
  const auto heads_fit = [&](int64_t n) { return model.heads % n == 0; };
  const auto kv_fits = [&](int64_t n) { return !has_kv || model.kv_heads % n == 0 || n % model.kv_heads == 0; };
  const auto ffn_fits = [&](int64_t n) { return !has_ffn || model.ffn_hidden_size % n == 0; };
  const auto expert_fits = [&](int64_t n) { return !has_expert_ffn || model.moe->ffn_hidden_size % n == 0; };
  const auto sequence_fits = [&](int64_t n) {
    return !splits_sequence || n == 1 || model.seq_length / config.mesh.cp % n == 0;
  };
  const std::string choices = either(divisors(
      model.heads, tp, [&](int64_t n) { return kv_fits(n) && ffn_fits(n) && expert_fits(n) && sequence_fits(n); }));
  if (!heads_fit(tp)) {
    review.problem({"mesh.tp", "model.heads"}, "{} does not divide model.heads ({}); choose {}", tp, model.heads,
                   choices);
  }
  if (!kv_fits(tp) && model.kv_heads != model.heads) {
    review.problem({"mesh.tp", "model.kv_heads"}, "{} and model.kv_heads ({}): one must divide the other; choose {}",
                   tp, model.kv_heads, choices);
  }
  if (!ffn_fits(tp)) {
    review.problem({"mesh.tp", "model.ffn_hidden_size"}, "{} does not divide model.ffn_hidden_size ({}); choose {}", tp,
                   model.ffn_hidden_size, choices);
  }
  if (!expert_fits(tp)) {
    review.problem({"mesh.tp", "model.moe.ffn_hidden_size"},
                   "{} does not divide model.moe.ffn_hidden_size ({}); choose {}", tp, model.moe->ffn_hidden_size,
                   choices);
  }
}

void check_experts(Review& review) {
  const Model& model = review.config.model;
  if (!model.moe) return;
  const Moe& moe = *model.moe;
  const int64_t ep = review.config.mesh.ep;
  if (review.sound({"mesh.ep", "model.moe.experts"}) && moe.experts % ep != 0) {
    review.problem({"mesh.ep", "model.moe.experts"}, "{} does not divide model.moe.experts ({}); {}", ep, moe.experts,
                   choose_divisor(moe.experts, ep));
  }
  if (review.sound({"model.moe.top_k", "model.moe.experts"}) && moe.top_k > moe.experts) {
    review.problem({"model.moe.top_k", "model.moe.experts"}, "{} is more than model.moe.experts ({}); choose 1 to {}",
                   moe.top_k, moe.experts, moe.experts);
  }
  if (review.sound({"model.moe.every", "model.layers"}) && moe.every > model.layers) {
    review.problem({"model.moe.every", "model.layers"},
                   "{} is more than model.layers ({}), so no layer would be MoE; choose 1 to {}", moe.every,
                   model.layers, model.layers);
  }
}

void check_sequence(Review& review) {
  const Config& config = review.config;
  const int64_t sequence = config.model.seq_length, cp = config.mesh.cp, tp = config.mesh.tp;
  if (!review.sound({"model.seq_length", "mesh.cp"})) return;
  const bool zigzag =
      cp > 1 && config.parallel.context.balance == ContextBalance::zigzag && review.sound({"parallel.context.balance"});
  if (zigzag && sequence % (2 * cp) != 0) {
    review.problem({"model.seq_length"},
                   "{} is not a multiple of 2 * mesh.cp ({}), as parallel.context.balance zigzag needs; {}", sequence,
                   2 * cp, choose_multiple(sequence, 2 * cp));
  } else if (sequence % cp != 0) {
    review.problem({"model.seq_length"}, "{} is not a multiple of mesh.cp ({}); {}", sequence, cp,
                   choose_multiple(sequence, cp));
  } else if (review.sound({"mesh.tp", "parallel.sequence_parallel"}) && tp > 1 && config.parallel.sequence_parallel &&
             (sequence / cp) % tp != 0) {
    const int64_t unit = product({zigzag && tp % 2 != 0 ? 2 : 1, cp, tp});
    review.problem({"model.seq_length"},
                   "{} / mesh.cp ({}) = {} is not a multiple of mesh.tp ({}), as parallel.sequence_parallel needs; {}",
                   sequence, cp, sequence / cp, tp, choose_multiple(sequence, unit));
  }
}

void check_ulysses(Review& review) {
  const Config& config = review.config;
  const int64_t cp = config.mesh.cp, tp = config.mesh.tp;
  if (config.parallel.context.method != ContextMethod::ulysses || cp == 1) return;
  if (!review.sound({"parallel.context.method", "mesh.cp", "mesh.tp", "model.heads", "model.kv_heads"})) return;
  if (config.model.heads % tp != 0) return;
  const int64_t heads = config.model.heads / tp;
  const int64_t kv_heads = std::max<int64_t>(1, config.model.kv_heads / tp);
  const auto kv_fits = [&](int64_t n) { return kv_heads % n == 0 || n % kv_heads == 0; };
  const std::string choices = either(divisors(heads, cp, kv_fits));
  if (heads % cp != 0) {
    review.problem({"mesh.cp", "parallel.context.method"},
                   "{} does not divide model.heads / mesh.tp ({} / {} = {}), as parallel.context.method ulysses needs; "
                   "choose {}",
                   cp, config.model.heads, tp, heads, choices);
  } else if (!kv_fits(cp)) {
    review.problem({"mesh.cp", "parallel.context.method"},
                   "{} and the key and value heads of a rank ({}): one must divide the other under "
                   "parallel.context.method ulysses; choose {}",
                   cp, kv_heads, choices);
  }
}

void check_pipeline(Review& review) {
  const Config& config = review.config;
  const Pipeline& pipeline = config.parallel.pipeline;
  const int64_t pp = config.mesh.pp, layers = config.model.layers;
  if (!review.sound({"parallel.pipeline.virtual_stages", "parallel.pipeline.schedule"})) return;
  const int64_t chunks = pipeline.stages_per_rank();
  if (pipeline.schedule == PipelineSchedule::zero_bubble_v) {
    if (pipeline.virtual_stages > 2)
      review.problem({"parallel.pipeline.virtual_stages"},
                     "{} under parallel.pipeline.schedule zero_bubble_v, which has 2; choose 2, or leave it out",
                     pipeline.virtual_stages);
  } else if (pipeline.virtual_stages > 1 && pipeline.schedule != PipelineSchedule::interleaved) {
    review.problem({"parallel.pipeline.virtual_stages"},
                   "{} needs parallel.pipeline.schedule interleaved; choose 1, or that schedule",
                   pipeline.virtual_stages);
  }
  if (!review.sound({"mesh.pp", "model.layers"})) return;
  const int64_t stages = product({pp, chunks});
  if (layers < stages) {
    review.problem(
        {"mesh.pp", "parallel.pipeline.virtual_stages", "model.layers"},
        "{} * parallel.pipeline.virtual_stages ({}) = {} stages need as many layers, but model.layers is {}; "
        "choose {}",
        pp, chunks, stages, layers, up_to(layers / chunks));
  }
  if (!pipeline.layers_per_stage || !review.sound({"parallel.pipeline.layers_per_stage"})) return;
  const std::vector<int64_t>& split = *pipeline.layers_per_stage;
  if (std::ssize(split) != stages) {
    review.problem(
        {"parallel.pipeline.layers_per_stage"},
        "it has {} for mesh.pp * parallel.pipeline.virtual_stages ({} * {} = {}) stages; give one entry a stage",
        split.size(), pp, chunks, stages);
  }
  for (int64_t stage = 1; stage + 1 < std::ssize(split); ++stage) {
    if (split[static_cast<size_t>(stage)] > 0) continue;
    review.problem(
        {"parallel.pipeline.layers_per_stage"},
        "stage {} has no layer; only the first and the last stage may have none, which have the embedding and "
        "the head; give it at least 1",
        stage);
  }
  int64_t sum = 0;
  for (const int64_t entry : split) {
    if (__builtin_add_overflow(sum, entry, &sum)) sum = kHuge;
  }
  if (sum != layers) {
    review.problem({"parallel.pipeline.layers_per_stage"},
                   "the entries add up to {}, but model.layers is {}; they must "
                   "be equal",
                   sum, layers);
  }
}

void check_batch(Review& review) {
  const Config& config = review.config;
  if (!review.sound({"train.global_batch_size", "train.micro_batch_size", "mesh.dp", "mesh.ep"})) return;
  const int64_t batch = config.train.global_batch_size, micro = config.train.micro_batch_size;
  const int64_t unit = product({micro, config.mesh.dp, config.mesh.ep});
  if (batch % unit != 0) {
    review.problem({"train.global_batch_size"},
                   "{} is not a multiple of train.micro_batch_size * mesh.dp * mesh.ep ({} * {} * {} = {}); {}", batch,
                   micro, config.mesh.dp, config.mesh.ep, unit, choose_multiple(batch, unit));
  }
}

void check_schedule(Review& review) {
  const Schedule& schedule = review.config.schedule;
  if (!review.sound({"schedule.warmup_steps", "schedule.decay", "schedule.decay_steps"})) return;
  if (!review.is_given("schedule.decay_steps")) return;  // a run may be all warm-up
  if (schedule.decay != Decay::constant && schedule.decay_steps <= schedule.warmup_steps) {
    review.problem({"schedule.decay_steps", "schedule.warmup_steps"},
                   "{} does not exceed schedule.warmup_steps ({}); choose at least {}, or schedule.decay constant",
                   schedule.decay_steps, schedule.warmup_steps,
                   schedule.warmup_steps == kHuge ? kHuge : schedule.warmup_steps + 1);
  }
}

void check_optimizer(Review& review) {
  const Config& config = review.config;
  if (!review.sound({"optimizer.epsilon", "precision.compute"})) return;
  if (config.precision.compute != ComputeType::fp64 && config.optimizer.epsilon < kLeastFp32Epsilon) {
    review.problem({"optimizer.epsilon", "precision.compute"},
                   "{} is below {}, so under precision.compute {} it can vanish in fp32 and a gradient of zero gives "
                   "0/0; choose 1.0e-8, or precision.compute fp64",
                   config.optimizer.epsilon, kLeastFp32Epsilon, name_of(config.precision.compute));
  }
}

void check_precision(Review& review) {
  const Precision& precision = review.config.precision;
  if (review.sound({"device.kind", "precision.compute"}) && review.config.device.kind == DeviceKind::cuda &&
      precision.compute == ComputeType::fp64) {
    review.problem({"precision.compute", "device.kind"},
                   "fp64 is for proofs on the CPU; choose fp32, or device.kind cpu");
  }
  if (!review.sound({"precision.compute", "precision.gradients"})) return;
  if (precision.gradients == GradientType::bf16 && precision.compute != ComputeType::bf16) {
    review.problem({"precision.gradients", "precision.compute"},
                   "bf16 is narrower than precision.compute {}; choose fp32, or precision.compute bf16",
                   name_of(precision.compute));
  }
}

void check_rope_scaling(Review& review) {
  const Model& model = review.config.model;
  if (!model.rope_scaling) return;
  if (model.position != Position::rope && review.sound({"model.position"})) {
    review.problem({"model.rope_scaling"}, "needs model.position rope; remove it, or choose rope");
  }
  const double low = model.rope_scaling->low_freq_factor, high = model.rope_scaling->high_freq_factor;
  if (review.sound({"model.rope_scaling.low_freq_factor", "model.rope_scaling.high_freq_factor"}) && !(low < high)) {
    review.problem({"model.rope_scaling.low_freq_factor"}, "{} is not below model.rope_scaling.high_freq_factor ({})",
                   low, high);
  }
}

void check_data(Review& review) {
  const Config& config = review.config;
  const Data& data = config.data;
  if (review.sound({"model.vocab_size", "data.tokenizer"}) && data.tokenizer == "bytes" &&
      config.model.vocab_size < kByteIds) {
    review.problem({"model.vocab_size"},
                   "{} is less than the {} ids of data.tokenizer bytes; choose auto or at least {}",
                   config.model.vocab_size, kByteIds, kByteIds);
  }
  if (review.sound({"data.split", "data.order"}) && data.split && data.order != DataOrder::megatron) {
    review.problem({"data.split"}, "goes with data.order megatron only; use data.validation, or that order");
  }
  if (review.sound({"data.split", "data.validation"}) && data.split &&
      std::holds_alternative<double>(data.validation)) {
    review.problem({"data.validation"}, "a fraction and data.split exclude one another; remove one of the two");
  }
  if (review.sound({"data.validation", "data.split", "train.eval_every"}) && config.train.eval_every > 0 &&
      std::holds_alternative<std::monostate>(data.validation) && !data.split) {
    review.problem({"train.eval_every"}, "{} needs data.validation; give files or a fraction such as 0.01",
                   config.train.eval_every);
  }
}

void check_documents(Review& review) {
  const Config& config = review.config;
  const Data& data = config.data;
  if (review.sound({"data.end_of_document", "model.vocab_size"}) && data.end_of_document &&
      *data.end_of_document >= config.model.vocab_size) {
    review.problem({"data.end_of_document", "model.vocab_size"},
                   "{} is not a token of model.vocab_size ({}); choose 0 to {}", *data.end_of_document,
                   config.model.vocab_size, config.model.vocab_size - 1);
  }
  if (!review.sound({"data.end_of_document", "data.tokenizer"}) || data.end_of_document || data.tokenizer != "bytes")
    return;
  const auto needs_ends = [&](std::string_view key, bool asked) {
    if (!asked || !review.sound({key})) return;
    review.problem({key},
                   "needs to know where documents end, but data.tokenizer bytes has no token for that; give "
                   "data.end_of_document, such as 10 where a line is a document, or choose false");
  };
  needs_ends("data.document_mask", data.document_mask);
  needs_ends("data.mask_end_of_document", data.mask_end_of_document);
}

// Steps after the last one are never reached.
void check_dump_steps(Review& review, std::string_view key, const std::vector<int64_t>& steps, int64_t first) {
  if (!review.sound({key, "train.steps"}) || steps.empty()) return;
  const int64_t latest = *std::max_element(steps.begin(), steps.end()), last = review.config.train.steps;
  if (latest > last) {
    review.problem({key}, "{} is beyond train.steps ({}) and would never be written; choose steps from {} to {}",
                   latest, last, first, last);
  }
}

void check_logging(Review& review) {
  check_dump_steps(review, "logging.gradient_dump_steps", review.config.logging.gradient_dump_steps, 1);
  check_dump_steps(review, "logging.weight_dump_steps", review.config.logging.weight_dump_steps, 0);
  const std::vector<int64_t>& steps = review.config.logging.trace_steps;
  if (!review.sound({"logging.trace_steps"}) || steps.empty()) return;
  if (steps.size() != 2 || steps[0] > steps[1]) {
    review.problem({"logging.trace_steps"}, "expects the first and the last step, such as [10, 12], or []");
  }
}

// Counts that the program keeps in 64 bits.
void check_totals(Review& review) {
  const Config& config = review.config;
  const Model& model = config.model;
  if (review.sound({"train.steps", "train.global_batch_size", "model.seq_length"}) &&
      product({config.train.steps, config.train.global_batch_size, model.seq_length}) == kHuge) {
    review.problem({"train.steps"}, "{} steps of {} sequences of {} tokens are more tokens than 64 bits count",
                   config.train.steps, config.train.global_batch_size, model.seq_length);
  }
}

void check_parameters(Review& review) {
  const Model& model = review.config.model;
  if (review.sound({"model.vocab_size", "model.hidden_size"}) &&
      product({model.vocab_size, model.hidden_size}) > kMostElements) {
    review.problem({"model.vocab_size", "model.hidden_size"},
                   "{} rows of model.hidden_size ({}) are an embedding of more than 2^50 parameters; lower one of the "
                   "two",
                   model.vocab_size, model.hidden_size);
  }
  if (review.sound({"model.seq_length", "model.hidden_size"}) &&
      product({model.seq_length, model.hidden_size}) > kMostElements) {
    review.problem({"model.seq_length", "model.hidden_size"},
                   "{} rows of model.hidden_size ({}) are a table of more than 2^50 elements; lower one of the two",
                   model.seq_length, model.hidden_size);
  }
  if (!review.sound({"model.layers", "model.hidden_size", "model.heads", "model.head_dim", "model.ffn_hidden_size"}))
    return;
  const int64_t widest = std::max(product({model.heads, model.head_dim}), model.ffn_hidden_size);
  if (product({model.layers, model.hidden_size, widest}) > kMostElements) {
    review.problem(
        {"model.hidden_size"},
        "{}, with {} layers, {} heads of {} and an MLP {} wide, makes more than 2^50 parameters; choose less",
        model.hidden_size, model.layers, model.heads, model.head_dim, model.ffn_hidden_size);
  }
  if (!model.moe || !review.sound({"model.moe.experts", "model.moe.shared_experts", "model.moe.ffn_hidden_size"}))
    return;
  const Moe& moe = *model.moe;
  if (product({model.layers, moe.experts + moe.shared_experts, model.hidden_size, moe.ffn_hidden_size}) >
      kMostElements) {
    review.problem({"model.moe.experts", "model.moe.ffn_hidden_size"},
                   "{} and {} shared ones in {} layers, each model.hidden_size ({}) by model.moe.ffn_hidden_size ({}), "
                   "make more than 2^50 parameters; choose less",
                   moe.experts, moe.shared_experts, model.layers, model.hidden_size, moe.ffn_hidden_size);
  }
}

void check_activations(Review& review) {
  const Model& model = review.config.model;
  const int64_t micro = review.config.train.micro_batch_size;
  if (!review.sound({"train.micro_batch_size", "model.seq_length", "model.hidden_size", "model.heads", "model.head_dim",
                     "model.ffn_hidden_size", "model.vocab_size"}))
    return;
  const int64_t widest =
      std::max({model.hidden_size, product({model.heads, model.head_dim}), model.ffn_hidden_size, model.vocab_size});
  if (product({micro, model.seq_length, widest}) > kMostElements) {
    review.problem({"train.micro_batch_size", "model.seq_length"},
                   "{} sequences of model.seq_length ({}), by the widest of model.hidden_size ({}), model.heads * "
                   "model.head_dim ({} * {}), model.ffn_hidden_size ({}) and model.vocab_size ({}), make activations "
                   "of more than 2^50 elements; lower train.micro_batch_size, model.seq_length or the widest",
                   micro, model.seq_length, model.hidden_size, model.heads, model.head_dim, model.ffn_hidden_size,
                   model.vocab_size);
  }
}

}  // namespace

void check_rules(Review& review, int64_t world_size) {
  check_mesh(review, world_size);
  check_heads(review);
  check_tensor_parallel(review);
  check_experts(review);
  check_sequence(review);
  check_ulysses(review);
  check_pipeline(review);
  check_batch(review);
  check_schedule(review);
  check_optimizer(review);
  check_precision(review);
  check_rope_scaling(review);
  check_data(review);
  check_documents(review);
  check_logging(review);
  check_totals(review);
  check_parameters(review);
  check_activations(review);
}

}  // namespace quintet::config
