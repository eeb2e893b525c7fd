// What a step hands over, to the byte: closed forms from the model's shape, written apart from the program that counts.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include <fmt/core.h>

#include "tests/support/training_run.h"

namespace quintet::testing {
namespace {

// A model by its letters, see lib/README.md.
struct ModelShape {
  int64_t L = 2, H = 32, N = 4, K = 4, D = 8, F = 48, V = 257, S = 16;  // K: key-value heads
  bool norm_bias = true, bias = true, gated = false, learned_positions = true, qk_norm = false, tied = true;

  std::vector<std::string> overrides() const {
    std::vector<std::string> all;
    const auto set = [&](const char* key, const auto& value) { all.push_back(fmt::format("model.{}={}", key, value)); };
    set("layers", L);
    set("hidden_size", H);
    set("heads", N);
    set("kv_heads", K);
    set("head_dim", D);
    set("ffn_hidden_size", F);
    set("vocab_size", V);
    set("seq_length", S);
    set("norm", norm_bias ? "layernorm" : "rmsnorm");
    set("bias", bias);
    set("activation", gated ? "swiglu" : "gelu");
    set("position", learned_positions ? "learned" : "rope");
    set("qk_norm", qk_norm);
    set("tie_embeddings", tied);
    return all;
  }
};

constexpr ModelShape kGpt2 = {};
constexpr ModelShape kQwen3 = {.K = 2,
                               .D = 12,
                               .norm_bias = false,
                               .bias = false,
                               .gated = true,
                               .learned_positions = false,
                               .qk_norm = true,
                               .tied = false};

struct Layout {
  ModelShape model;
  Sizes sizes;
  int64_t zero = 1;
  bool sequence_parallel = true;
  int64_t micro_batch = 1;
  std::string method = "ring", balance = "zigzag";  // of context ranks
  std::string recompute = "none";

  int64_t rows() const { return micro_batch * model.S / sizes.cp; }
  int64_t data_ranks() const { return sizes.dp * sizes.cp; }  // that share the sums of gradients
  int64_t microbatches() const { return 8 / (micro_batch * sizes.dp); }
  int64_t layers() const { return model.L / sizes.pp; }  // of each stage
  std::string text() const {
    return fmt::format(
        "{}; ZeRO {}, sequence parallel {}, {} key heads, tied {}, microbatches of {}, {}, {}, recompute {}",
        sizes.text(), zero, sequence_parallel, model.K, model.tied, micro_batch, method, balance, recompute);
  }
  std::vector<std::string> overrides() const {
    std::vector<std::string> all = with(
        model.overrides(), {"train.steps=1", "train.eval_steps=1", fmt::format("parallel.zero.stage={}", zero),
                            fmt::format("parallel.sequence_parallel={}", sequence_parallel),
                            fmt::format("train.micro_batch_size={}", micro_batch), "parallel.context.method=" + method,
                            "parallel.context.balance=" + balance, "parallel.recompute=" + recompute});
    // As many layers on each stage, so that no cost model enters here.
    std::string split;
    for (int64_t stage = 0; stage < sizes.pp; ++stage) split += fmt::format("{}{}", stage == 0 ? "" : ", ", layers());
    if (sizes.pp > 1) all.push_back("parallel.pipeline.layers_per_stage=[" + split + "]");
    return all;
  }
};

constexpr int64_t kElement = 8;  // bytes in fp64

int64_t up_to(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
// Member i's share of n elements dealt to `members`.
int64_t share(int64_t n, int64_t members, int64_t i) { return n / members + (i < n % members ? 1 : 0); }
// An all-reduce of n elements: all but its own share to their owners, then its sum to all others.
int64_t all_reduced(int64_t n, int64_t members, int64_t i) {
  return members == 1 ? 0 : n - share(n, members, i) + share(n, members, i) * (members - 1);
}

// With whom a rank adds a gradient up besides the data ranks.
enum class With : uint8_t { nobody, tensor_ranks, block, other_end };
struct Piece {
  int64_t elements;
  With with = With::nobody;
  int64_t unit = 0;  // 0: the embedding; then the layers; last the head
};

// What a rank of a stage holds, from its embedding to its head.
std::vector<Piece> pieces_of_stage(const Layout& layout, int64_t stage) {
  const ModelShape& m = layout.model;
  const int64_t tp = layout.sizes.tp;
  std::vector<Piece> pieces;
  size_t known = 0;
  int64_t unit = 0;
  const auto end_unit = [&] {
    for (; known < pieces.size(); ++known) pieces[known].unit = unit;
    ++unit;
  };
  const auto norm = [&] {
    for (int i = 0; i < (m.norm_bias && m.bias ? 2 : 1); ++i)
      pieces.push_back({m.H, layout.sequence_parallel ? With::tensor_ranks : With::nobody});
  };
  const auto by_columns = [&](int64_t out, With with = With::nobody) {
    pieces.push_back({out * m.H, with});
    if (m.bias) pieces.push_back({out, with});
  };
  const auto by_rows = [&](int64_t in) {
    pieces.push_back({in * m.H});
    if (m.bias) pieces.push_back({m.H});
  };
  const auto vocabulary = [&](bool shared) {
    pieces.push_back({up_to(m.V, tp) / tp * m.H, shared ? With::other_end : With::nobody});
  };
  const bool first = stage == 0, last = stage + 1 == layout.sizes.pp;
  const bool two_ends = m.tied && layout.sizes.pp > 1;
  if (first) vocabulary(two_ends);
  if (first && m.learned_positions) pieces.push_back({m.S * m.H});
  end_unit();
  for (int64_t layer = 0; layer < layout.layers(); ++layer) {
    norm();
    by_columns(m.N / tp * m.D);
    for (int key_and_value = 0; key_and_value < 2; ++key_and_value)
      by_columns(std::max<int64_t>(1, m.K / tp) * m.D, m.K < tp ? With::block : With::nobody);
    if (m.qk_norm) pieces.insert(pieces.end(), 2, {m.D, With::tensor_ranks});
    by_rows(m.N / tp * m.D);
    norm();
    for (int i = 0; i < (m.gated ? 2 : 1); ++i) by_columns(m.F / tp);
    by_rows(m.F / tp);
    end_unit();
  }
  if (last) norm();
  if (last && (!m.tied || two_ends)) vocabulary(two_ends);
  end_unit();
  return pieces;
}

// A stage's gradients as they are reduced: backwards, each from a multiple of 64 elements on, what the ends share by
// itself, and from ZeRO 2 on each unit by itself; the end a multiple of 128 and of the data ranks.
struct Bucket {
  std::vector<Piece> pieces;
  std::vector<int64_t> begins;
  int64_t elements = 0;
};
std::vector<Bucket> buckets_of_stage(const Layout& layout, int64_t stage) {
  std::vector<Piece> pieces = pieces_of_stage(layout, stage);
  std::reverse(pieces.begin(), pieces.end());
  std::vector<Bucket> buckets;
  for (const Piece& piece : pieces) {
    const bool alone = piece.with == With::other_end;
    if (buckets.empty() || alone || buckets.back().pieces.back().with == With::other_end ||
        (layout.zero >= 2 && buckets.back().pieces.back().unit != piece.unit))
      buckets.emplace_back();
    Bucket& bucket = buckets.back();
    bucket.begins.push_back(up_to(bucket.elements, 64));
    bucket.pieces.push_back(piece);
    bucket.elements = bucket.begins.back() + piece.elements;
  }
  for (Bucket& bucket : buckets) {
    while (bucket.elements % 128 != 0 || bucket.elements % layout.data_ranks() != 0) ++bucket.elements;
  }
  return buckets;
}

// Elements that data rank `d` updates of those which it shares with others so.
int64_t updated(const Layout& layout, int64_t stage, int64_t d, With with) {
  int64_t sum = 0;
  for (const Bucket& bucket : buckets_of_stage(layout, stage)) {
    const int64_t own = bucket.elements / layout.data_ranks();
    const int64_t begin = layout.zero == 0 ? 0 : d * own, end = layout.zero == 0 ? bucket.elements : begin + own;
    for (size_t i = 0; i < bucket.pieces.size(); ++i)
      if (bucket.pieces[i].with == with)
        sum += std::max<int64_t>(
            0, std::min(end, bucket.begins[i] + bucket.pieces[i].elements) - std::max(begin, bucket.begins[i]));
  }
  return sum;
}

int64_t tensor_bytes(const Layout& layout, int64_t d, int64_t t, int64_t stage) {
  const ModelShape& m = layout.model;
  const int64_t tp = layout.sizes.tp, tokens = layout.rows();
  if (tp == 1) return 0;
  const bool first = stage == 0, last = stage + 1 == layout.sizes.pp;
  int64_t microbatch = 0;
  if (layout.sequence_parallel) {
    const int64_t others = tokens / tp * (tp - 1) * m.H;  // of a gather as of a scatter
    // A layer gathers and scatters twice forwards and backwards, and gathers two inputs again; computed again it does
    // all of forward but for the last scatter.
    const int64_t again = layout.recompute == "full" ? 3 : 0;
    microbatch = others * ((4 + 6 + again) * layout.layers() + (first ? 2 : 0) + (last ? 2 : 0));
  } else {
    const int64_t whole = all_reduced(tokens * m.H, tp, t);
    const int64_t again = layout.recompute == "full" ? 1 : 0;
    microbatch = whole * ((4 + again) * layout.layers() + (first ? 1 : 0) + (last ? 1 : 0));
  }
  if (last) microbatch += 3 * tokens * (tp - 1);  // maximum, sum and target logit of each token
  const int64_t block = m.K < tp ? tp / m.K : 1;
  return kElement *
         (layout.microbatches() * microbatch + all_reduced(updated(layout, stage, d, With::tensor_ranks), tp, t) +
          all_reduced(updated(layout, stage, d, With::block), block, t % block));
}

int64_t pipeline_bytes(const Layout& layout, int64_t d, int64_t stage) {
  const ModelShape& m = layout.model;
  const int64_t stages = layout.sizes.pp;
  if (stages == 1) return 0;
  const bool first = stage == 0, last = stage + 1 == stages;
  const int64_t rows = layout.rows() / (layout.sequence_parallel ? layout.sizes.tp : 1);
  int64_t elements = layout.microbatches() * rows * m.H * (first || last ? 1 : 2);
  if (first || last) elements += all_reduced(updated(layout, stage, d, With::other_end), 2, first ? 0 : 1);
  return kElement * elements;
}

// How often a microbatch uses a unit's weights: each way, but the embedding's backward needs none, and the head goes
// both ways at once; it uses the table, too, where it is the embedding's.
int64_t gathers_of_unit(const Layout& layout, int64_t stage, int64_t unit) {
  constexpr int64_t kByHead = 1;
  const bool last = stage + 1 == layout.sizes.pp;
  if (unit > 0) return unit > layout.layers() ? kByHead : 2;
  return 1 + (last && layout.model.tied ? kByHead : 0);
}

int64_t data_bytes(const Layout& layout, int64_t d, int64_t stage, int64_t rank) {
  constexpr int64_t kSumWords = 2 * 72;  // exact sums of loss and squared norm
  const int64_t dp = layout.data_ranks();
  int64_t elements = all_reduced(1, dp, d) + all_reduced(kSumWords, layout.sizes.ranks(), rank);
  for (const Bucket& bucket : buckets_of_stage(layout, stage)) {
    const int64_t others = bucket.elements / dp * (dp - 1);  // of a gather as of a scatter
    const int64_t m = layout.microbatches();
    if (layout.zero <= 1) elements += 2 * others;
    if (layout.zero == 2) elements += (m + 1) * others;  // each microbatch's gradients; the new weights
    if (layout.zero == 3) elements += m * (1 + gathers_of_unit(layout, stage, bucket.pieces.back().unit)) * others;
  }
  return kElement * elements;
}

int64_t context_bytes(const Layout& layout, int64_t c) {
  const ModelShape& m = layout.model;
  const int64_t cp = layout.sizes.cp, tp = layout.sizes.tp;
  if (cp == 1) return 0;
  const int64_t key_heads = std::max<int64_t>(1, m.K / tp);
  const int64_t block = 2 * layout.rows() * key_heads * m.D;  // keys and values, or their gradients
  const int64_t again = layout.recompute == "none" ? 0 : 1;   // attention's forward
  int64_t layer = 0;
  if (layout.method == "ulysses") {
    // Queries, context; queries, context, its gradient and that of the queries again; keys and values thrice, twice.
    layer = (6 + 2 * again) * layout.rows() * (m.N / tp) * m.D / cp * (cp - 1);
    layer += (6 + 2 * again) * layout.rows() * std::max<int64_t>(1, key_heads / cp) * m.D * (cp - 1);
  } else if (layout.method == "all_gather" || layout.balance == "zigzag") {
    layer = (3 + again) * block * (cp - 1);  // two gathers and a scatter; or as many hops
  } else if (c + 1 < cp) {
    layer = block * ((2 + again) * (c + 1) + c);  // own and earlier blocks, twice; gradients of the earlier ones
  } else {
    layer = block * c;  // gradients go home
  }
  return kElement * layout.microbatches() * layout.layers() * layer;
}

// The most of any rank, axis by axis.
PerAxis<int64_t> closed_form(const Layout& layout) {
  const Sizes& sizes = layout.sizes;
  PerAxis<int64_t> most;
  for (int64_t rank = 0; rank < sizes.ranks(); ++rank) {
    const int64_t t = rank % sizes.tp, c = rank / sizes.tp % sizes.cp;
    const int64_t d = rank / sizes.tp % layout.data_ranks(), stage = rank / sizes.tp / layout.data_ranks();
    most[Axis::tp] = std::max(most[Axis::tp], tensor_bytes(layout, d, t, stage));
    most[Axis::pp] = std::max(most[Axis::pp], pipeline_bytes(layout, d, stage));
    most[Axis::cp] = std::max(most[Axis::cp], context_bytes(layout, c));
    most[Axis::dp] = std::max(most[Axis::dp], data_bytes(layout, d, stage, rank));
  }
  return most;
}

void require_closed_form(const Layout& layout) {
  const PerAxis<int64_t> bytes = train(layout.overrides(), layout.sizes).comm_bytes.front();
  const PerAxis<int64_t> expected = closed_form(layout);
  INFO(layout.text());
  for (const Axis axis : kAxes) {
    INFO(name_of(axis));
    REQUIRE(bytes[axis] == expected[axis]);
  }
}

// Over all ZeRO stages, with and without sequence parallelism.
void require_closed_forms(const ModelShape& model, const std::vector<Sizes>& meshes) {
  for (const Sizes& sizes : meshes)
    for (const int64_t zero : {0, 1, 2, 3})
      for (const bool sequence_parallel : {true, false})
        if (sizes.tp > 1 || sequence_parallel)
          require_closed_form({.model = model, .sizes = sizes, .zero = zero, .sequence_parallel = sequence_parallel});
}

ModelShape with_layers(ModelShape model, int64_t layers) {
  model.L = layers;
  return model;
}

int64_t tensor_operations(const ModelShape& model, bool sequence_parallel) {
  const Layout layout = {.model = model, .sizes = {.tp = 2}, .sequence_parallel = sequence_parallel, .micro_batch = 8};
  return train(layout.overrides(), layout.sizes).operations.front()[Axis::tp];
}

}  // namespace

TEST_CASE("what a data rank hands over is the closed form, to the byte", "[quick][traffic]") {
  require_closed_forms(kGpt2, {{.dp = 2}, {.dp = 4}, {.dp = 8}});
  require_closed_forms(kQwen3, {{.dp = 4}});
}

TEST_CASE("what a tensor rank hands over is the closed form, to the byte", "[quick][traffic]") {
  require_closed_forms(kGpt2, {{.tp = 2}, {.tp = 4}});
  require_closed_forms(kQwen3, {{.tp = 2}, {.tp = 4}});  // 2 key heads: fewer than 4 ranks
  require_closed_form({.model = kQwen3, .sizes = {.tp = 4}, .micro_batch = 4});
}

TEST_CASE("what a stage hands over is the closed form, to the byte", "[quick][traffic]") {
  for (const bool tied : {true, false}) {
    ModelShape model = with_layers(kGpt2, 4);
    model.tied = tied;
    require_closed_forms(model, {{.pp = 2}, {.pp = 4}});
  }
  require_closed_form({.model = with_layers(kQwen3, 4), .sizes = {.pp = 4}, .micro_batch = 2});
}

TEST_CASE("what ranks of several axes hand over is the closed form, to the byte", "[quick][traffic]") {
  ModelShape tied = kQwen3;
  tied.tied = true;
  require_closed_forms(kGpt2, {{.dp = 2, .tp = 2, .pp = 2}});
  require_closed_forms(tied, {{.dp = 2, .tp = 4}, {.dp = 2, .tp = 2, .pp = 2}, {.dp = 4, .pp = 2}});
}

TEST_CASE("what a context rank hands over is the closed form, to the byte", "[quick][traffic][context]") {
  const std::vector<std::pair<std::string, std::string>> ways = {
      {"ring", "zigzag"}, {"ring", "none"}, {"all_gather", "zigzag"}, {"ulysses", "none"}};
  for (const auto& [method, balance] : ways)
    for (const ModelShape& model : {kGpt2, kQwen3})  // the latter's 2 key heads: fewer than 4 ranks
      for (const Sizes& sizes : {Sizes{.cp = 2}, Sizes{.cp = 4}, Sizes{.dp = 2, .cp = 2}, Sizes{.tp = 2, .cp = 2},
                                 Sizes{.tp = 2, .pp = 2, .cp = 2}})
        require_closed_form(
            {.model = model, .sizes = sizes, .micro_batch = sizes.tp, .method = method, .balance = balance});
}

TEST_CASE("recomputed layers hand over what they need again, to the byte", "[quick][traffic][recompute]") {
  for (const char* recompute : {"selective", "full"}) {
    for (const bool sequence_parallel : {true, false})
      require_closed_form(
          {.model = kQwen3, .sizes = {.tp = 2}, .sequence_parallel = sequence_parallel, .recompute = recompute});
    require_closed_form(
        {.model = with_layers(kGpt2, 4), .sizes = {.dp = 2, .pp = 2}, .zero = 3, .recompute = recompute});
    for (const auto& [method, balance] : std::vector<std::pair<std::string, std::string>>{
             {"ring", "zigzag"}, {"ring", "none"}, {"all_gather", "zigzag"}, {"ulysses", "none"}})
      require_closed_form({.model = kGpt2,
                           .sizes = {.tp = 2, .cp = 2},
                           .micro_batch = 2,
                           .method = method,
                           .balance = balance,
                           .recompute = recompute});
  }
}

TEST_CASE("in bf16 keys and values travel in 2 bytes, sums of their gradients in 4",
          "[quick][traffic][context][bf16]") {
  const Layout layout = {.model = {.K = 2}, .sizes = {.cp = 4}};
  const ModelShape& m = layout.model;
  // Of all microbatches and layers; each rank hands something over to 3 others.
  const int64_t parts = 3 * layout.microbatches() * m.L * layout.rows() * m.D;
  const auto bytes = [&](const char* method) {
    Layout with_method = layout;
    with_method.method = method;
    return train(with(with_method.overrides(), {"precision.compute=bf16"}), layout.sizes).comm_bytes.front()[Axis::cp];
  };
  REQUIRE(bytes("ring") == 2 * m.K * parts * (2 + 2 + 4));
  REQUIRE(bytes("all_gather") == 2 * m.K * parts * (2 + 2 + 4));
  // A query head a rank, and a key head that two ranks share.
  REQUIRE(bytes("ulysses") == 6 * parts * 2 + 2 * parts * (2 + 2 + 4));
}

TEST_CASE("one rank hands over nothing", "[quick][traffic]") {
  const Run run = train({"train.steps=1"});
  REQUIRE(run.comm_bytes.front() == PerAxis<int64_t>{});
  REQUIRE(run.operations.front() == PerAxis<int64_t>{});
}

TEST_CASE("a layer gathers and scatters twice each way and gathers two inputs again", "[quick][traffic]") {
  for (const ModelShape& model : {kGpt2, kQwen3}) {
    const auto a_layer_more = [&](bool sequence_parallel) {
      return tensor_operations(with_layers(model, 3), sequence_parallel) -
             tensor_operations(with_layers(model, 2), sequence_parallel);
    };
    REQUIRE(a_layer_more(true) == 4 + 6);
    REQUIRE(a_layer_more(false) == 4);  // all-reduces
  }
}

}  // namespace quintet::testing
