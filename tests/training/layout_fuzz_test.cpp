// Meshes and models drawn at random, legal or not: each is refused by name before it starts, or trains as one rank
// does.
#include <algorithm>
#include <initializer_list>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "lib/base/error.h"
#include "lib/base/random.h"
#include "tests/support/training_run.h"

namespace quintet::testing {
namespace {

class Draws {
 public:
  Draws(uint64_t seed, uint64_t stream) : seed_(seed), stream_(stream) {}
  int64_t between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(philox(seed_, next_++, stream_)[0] % static_cast<uint64_t>(most - least + 1));
  }
  bool once_in(int64_t times) { return between(1, times) == 1; }
  template <typename T>
  T one_of(std::initializer_list<T> choices) {
    return choices.begin()[between(0, static_cast<int64_t>(choices.size()) - 1)];
  }
  // Mostly a multiple of `unit`.
  int64_t mostly_multiple(int64_t unit, int64_t most) {
    return once_in(8) ? between(1, unit * most) : unit * between(1, most);
  }

 private:
  uint64_t seed_, stream_;
  uint64_t next_ = 0;
};

struct Drawn {
  Sizes sizes;
  std::vector<std::string> overrides;
};

Sizes draw_sizes(Draws& draws) {
  constexpr int64_t kMostRanks = 12;
  Sizes sizes;
  do {
    sizes = {.dp = draws.between(1, 4),
             .tp = draws.between(1, 4),
             .pp = draws.between(1, 4),
             .ep = draws.one_of({1, 1, 2, 3, 4}),
             .cp = draws.once_in(2) ? draws.between(2, 4) : 1};
  } while (sizes.ranks() > kMostRanks);
  return sizes;
}

// Shapes lean towards what fits the mesh, so that most are legal.
Drawn draw_layout(uint64_t seed, uint64_t number) {
  Draws draws(seed, number);
  Drawn drawn{.sizes = draw_sizes(draws), .overrides = {"train.steps=2", "train.eval_steps=1"}};
  const Sizes& sizes = drawn.sizes;
  const auto set = [&](const char* key, const auto& value) {
    drawn.overrides.push_back(fmt::format("{}={}", key, value));
  };

  const std::string method = draws.one_of({"ring", "all_gather", "ulysses"});
  const std::string balance = draws.one_of({"zigzag", "none"});
  set("parallel.context.method", method);
  set("parallel.context.balance", balance);
  const int64_t heads = draws.mostly_multiple(sizes.tp * (method == "ulysses" ? sizes.cp : 1), 3);
  set("model.heads", heads);
  if (!draws.once_in(3)) {
    int64_t kv_heads = draws.between(1, heads);
    while (heads % kv_heads != 0 && !draws.once_in(8)) kv_heads = draws.between(1, heads);
    set("model.kv_heads", kv_heads);
  }
  if (draws.once_in(3)) {
    set("model.hidden_size", 2 * heads * draws.between(2, 5));
  } else {
    set("model.head_dim", draws.once_in(6) ? draws.between(4, 9) : 2 * draws.between(2, 6));
    set("model.hidden_size", draws.between(8, 40));
  }
  set("model.ffn_hidden_size", draws.mostly_multiple(sizes.tp, 12));
  const std::string schedule = draws.one_of({"gpipe", "1f1b", "interleaved", "zero_bubble", "zero_bubble_v"});
  set("parallel.pipeline.schedule", schedule);
  int64_t stages = sizes.pp * (schedule == "zero_bubble_v" ? 2 : 1);
  if (schedule == "interleaved" || draws.once_in(20)) {
    const int64_t virtual_stages = draws.between(1, 3);
    set("parallel.pipeline.virtual_stages", virtual_stages);
    stages = sizes.pp * virtual_stages;
  }
  const int64_t layers = draws.once_in(12) ? draws.between(1, 4) : stages + draws.between(0, 2);
  set("model.layers", layers);
  const int64_t chunks = sizes.cp > 1 && balance == "zigzag" ? 2 * sizes.cp : sizes.cp;
  set("model.seq_length", draws.mostly_multiple(sizes.tp * chunks, sizes.cp > 1 ? 3 : 6));
  if (draws.once_in(3)) {
    if (!draws.once_in(6)) set("data.end_of_document", draws.one_of({32, 46, 101}));
    set("data.document_mask", draws.once_in(2));
    set("data.mask_end_of_document", draws.once_in(2));
  }
  set("model.vocab_size", draws.between(256, 300));
  set("model.norm", draws.one_of({"layernorm", "rmsnorm"}));
  set("model.activation", draws.one_of({"gelu", "gelu_exact", "swiglu", "relu_squared"}));
  set("model.position", draws.one_of({"learned", "rope", "none"}));
  set("model.qk_norm", draws.once_in(2));
  set("model.bias", draws.once_in(2));
  set("model.qkv_bias", draws.once_in(2));
  set("model.tie_embeddings", draws.once_in(2));
  set("model.dropout", draws.one_of({0.0, 0.1}));
  if (draws.once_in(3)) {
    std::vector<int64_t> split(static_cast<size_t>(draws.once_in(8) ? draws.between(1, 4) : stages), 1);
    // The ends may be left without a layer; elsewhere that is refused.
    split.front() = draws.between(0, 1);
    split.back() = draws.between(0, 1);
    for (int64_t left = layers - std::accumulate(split.begin(), split.end(), int64_t{0}); left > 0; --left)
      ++split[static_cast<size_t>(draws.between(0, std::ssize(split) - 1))];
    set("parallel.pipeline.layers_per_stage", fmt::format("[{}]", fmt::join(split, ", ")));
  }
  if (draws.once_in(2)) {
    const int64_t experts = draws.mostly_multiple(sizes.ep, 3);
    set("model.moe.experts", experts);
    set("model.moe.top_k", draws.once_in(12) ? draws.between(1, 4) : draws.between(1, std::min<int64_t>(experts, 4)));
    if (draws.once_in(2)) set("model.moe.ffn_hidden_size", draws.mostly_multiple(sizes.tp, 12));
    set("model.moe.every", draws.once_in(12) ? draws.between(1, 4) : draws.between(1, layers));
    set("model.moe.shared_experts", draws.between(0, 2));
    set("model.moe.normalize_top_k", draws.once_in(2));
    set("model.moe.routing", draws.once_in(4) ? "round_robin" : "learned");
    set("model.moe.balance", draws.one_of({"aux_loss", "bias", "none"}));
    set("model.moe.aux_loss_weight", 0.1);
    set("model.moe.z_loss_weight", draws.one_of({0.0, 0.01}));
    if (draws.once_in(3)) set("model.moe.capacity_factor", draws.one_of({0.5, 1.0, 1.3}));
  }
  const int64_t micro_batch = draws.between(1, 2);
  set("train.micro_batch_size", micro_batch);
  set("train.global_batch_size", draws.mostly_multiple(micro_batch * sizes.dp * sizes.ep, 3));
  set("parallel.zero.stage", draws.between(0, 3));
  set("parallel.zero.overlap", draws.once_in(2));
  set("parallel.zero.bucket_mb", draws.one_of({0.001, 0.01, 1.0}));
  set("parallel.sequence_parallel", draws.once_in(2));
  set("mesh.order", draws.one_of({"[tp, cp, ep, dp, pp]", "[pp, cp, ep, dp, tp]", "[dp, pp, tp, ep, cp]"}));
  set("mesh.dp", sizes.dp);
  set("mesh.tp", sizes.tp);
  set("mesh.pp", sizes.pp);
  set("mesh.cp", sizes.cp);
  set("mesh.ep", sizes.ep);
  return drawn;
}

// Why the configuration is refused; nothing where it is legal.
std::optional<std::string> refusal_of(const Drawn& drawn) {
  try {
    tiny_config(with(drawn.overrides, {"data.train=text.txt"}), drawn.sizes.ranks());
    return std::nullopt;
  } catch (const Error& error) {
    REQUIRE(error.code() == ExitCode::config);
    return error.what();
  }
}

bool names_a_key(const std::string& refusal, const std::vector<std::string>& overrides) {
  return std::any_of(overrides.begin(), overrides.end(), [&](const std::string& one) {
    return refusal.find("command line: " + one + ": ") != std::string::npos;
  });
}

void require_refused_or_equal(uint64_t seed, uint64_t count) {
  for (uint64_t number = 0; number < count; ++number) {
    const Drawn drawn = draw_layout(seed, number);
    INFO(fmt::format("layout {} of seed {:x}: '{}'", number, seed, fmt::join(drawn.overrides, "' '")));
    if (const std::optional<std::string> refusal = refusal_of(drawn)) {
      INFO(*refusal);
      REQUIRE(names_a_key(*refusal, drawn.overrides));
    } else {
      References references;
      require_equal_training(train(drawn.overrides, drawn.sizes), references.of(drawn.overrides), 1e-10);
    }
  }
}

}  // namespace

TEST_CASE("random layouts are legal often enough, and not always", "[quick][layouts][fuzz]") {
  constexpr int kLayouts = 500;
  int legal = 0;
  for (uint64_t number = 0; number < kLayouts; ++number)
    if (!refusal_of(draw_layout(test_seed(), number))) ++legal;
  INFO(legal << " of " << kLayouts);
  REQUIRE(legal > 0.4 * kLayouts);
  REQUIRE(legal < 0.9 * kLayouts);
}

TEST_CASE("a random layout is refused by name or trains as one rank does", "[quick][layouts][fuzz]") {
  require_refused_or_equal(test_seed(), 10);
}

TEST_CASE("200 random layouts are refused by name or train as one rank does", "[full][layouts][fuzz]") {
  require_refused_or_equal(test_seed(), 200);
}

}  // namespace quintet::testing
