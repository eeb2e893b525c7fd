// What a step with experts hands over, to the byte: closed forms written apart from the program that counts. Round
// robin says which slots go where.
#include <algorithm>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include <fmt/core.h>

#include "tests/support/training_run.h"

namespace quintet::testing {
namespace {

// GPT-2's shape by its letters, see lib/README.md; every layer is a mixture of experts F wide.
struct Layout {
  Sizes sizes;
  int64_t E = 8, K = 2, shared = 0;
  int64_t zero = 1;
  bool sequence_parallel = true, has_capacity = false, has_bias = false, recomputes = false;
  int64_t micro_batch = 1;
  int64_t L = 2, H = 32, N = 4, D = 8, F = 48, V = 257, S = 16;

  int64_t data_ranks() const { return sizes.dp * sizes.ep; }
  int64_t microbatches() const { return 8 / (micro_batch * data_ranks()); }
  int64_t tokens() const { return micro_batch * S; }
  bool splits() const { return sequence_parallel && sizes.tp > 1; }
  std::string text() const {
    return fmt::format(
        "{}; {} of {} experts and {} shared, ZeRO {}, sequence parallel {}, capacity {}, bias {}, recomputes {}",
        sizes.text(), K, E, shared, zero, sequence_parallel, has_capacity, has_bias, recomputes);
  }
  std::vector<std::string> overrides() const {
    std::vector<std::string> all = {"train.steps=1", "train.eval_steps=1", "model.moe.routing=round_robin"};
    const auto set = [&](const char* key, const auto& value) { all.push_back(fmt::format("{}={}", key, value)); };
    set("model.layers", L);
    set("model.hidden_size", H);
    set("model.heads", N);
    set("model.head_dim", D);
    set("model.ffn_hidden_size", F);
    set("model.vocab_size", V);
    set("model.seq_length", S);
    set("model.moe.experts", E);
    set("model.moe.top_k", K);
    set("model.moe.shared_experts", shared);
    // 1.5 times the mean: nothing is dropped.
    if (has_capacity) set("model.moe.capacity_factor", 1.5);
    if (has_bias) set("model.moe.balance", "bias");
    set("parallel.zero.stage", zero);
    set("parallel.recompute", recomputes ? "full" : "none");
    set("parallel.sequence_parallel", sequence_parallel);
    set("train.micro_batch_size", micro_batch);
    return all;
  }
};

constexpr int64_t kElement = 8, kIndex = 4;  // bytes of a number, in fp64 or i64, and of an expert's index

int64_t up_to(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
int64_t share(int64_t n, int64_t members, int64_t i) { return n / members + (i < n % members ? 1 : 0); }
// An all-reduce of n elements: all but its own share to their owners, then its sum to all others.
int64_t all_reduced(int64_t n, int64_t members, int64_t i) {
  return members == 1 ? 0 : n - share(n, members, i) + share(n, members, i) * (members - 1);
}

// Slots of a microbatch that tensor rank t sends to the experts of rank e along ep.
int64_t slots(const Layout& layout, int64_t t, int64_t e) {
  const int64_t rows = layout.splits() ? layout.tokens() / layout.sizes.tp : layout.tokens();
  const int64_t first = layout.splits() ? t * rows : 0, own = layout.E / layout.sizes.ep;
  int64_t count = 0;
  for (int64_t row = first; row < first + rows; ++row)
    for (int64_t j = 0; j < layout.K; ++j)
      if ((row % layout.S * layout.K + j) % layout.E / own == e) ++count;
  return count;
}

// Every rank along ep sends as much to e as the others do.
int64_t received(const Layout& layout, int64_t t, int64_t e) { return layout.sizes.ep * slots(layout, t, e); }

int64_t expert_bytes(const Layout& layout, int64_t t, int64_t e) {
  const int64_t tp = layout.splits() ? layout.sizes.tp : 1, ep = layout.sizes.ep;
  int64_t sent = 0;
  for (int64_t other = 0; other < ep; ++other)
    if (other != e) sent += slots(layout, t, other);
  const int64_t returned = (ep - 1) * slots(layout, t, e);
  const int64_t rows = layout.tokens() / tp;
  int64_t layer = kElement * layout.H * (sent + returned);                // each way, forwards
  layer += kElement * layout.E / ep * (ep - 1);                           // counts
  layer += kElement * layout.E * (tp - 1);                                // counts of the other tensor ranks' rows
  layer += kElement * all_reduced(layout.micro_batch * layout.E, tp, t);  // loads of sequences
  if (layout.has_capacity) layer += rows * (layout.K * kIndex + kElement) * (tp - 1);
  if (layout.recomputes) layer *= 2;
  layer += kElement * layout.H * (sent + returned);  // backwards
  return layout.microbatches() * layout.L * layer;
}

struct Piece {
  int64_t elements;
  bool summed_by_tensor_ranks = false;
};
struct Bucket {
  std::vector<Piece> pieces;
  std::vector<int64_t> begins;
  int64_t elements = 0;

  // Pieces in the order of backward, each from a multiple of 64 on.
  Bucket(std::vector<Piece> forwards, int64_t ranks) : pieces(std::move(forwards)) {
    std::reverse(pieces.begin(), pieces.end());
    for (const Piece& piece : pieces) {
      begins.push_back(up_to(elements, 64));
      elements = begins.back() + piece.elements;
    }
    while (elements % 128 != 0 || elements % ranks != 0) ++elements;
  }
};

std::vector<Piece> feed_forward(const Layout& layout) {
  const int64_t F = layout.F / layout.sizes.tp;
  return {{F * layout.H}, {F}, {layout.H * F}, {layout.H}};
}

// Buckets of a group, each with the times that a microbatch gathers it under ZeRO 3.
struct Shared {
  Bucket bucket;
  int64_t gathers;
};

// Of all units together, or from ZeRO 2 on one each.
std::vector<Shared> shared(const Layout& layout, const std::vector<std::vector<Piece>>& units,
                           const std::vector<int64_t>& gathers, int64_t ranks) {
  std::vector<Shared> all;
  std::vector<Piece> together;
  for (size_t i = 0; i < units.size(); ++i) {
    if (layout.zero >= 2) all.push_back({Bucket(units[i], ranks), gathers[i]});
    together.insert(together.end(), units[i].begin(), units[i].end());
  }
  if (layout.zero < 2) all.push_back({Bucket(together, ranks), 0});
  return all;
}

// What all ranks along ep hold, from the embedding to the head, which uses the embedding's table once.
std::vector<Shared> dense(const Layout& layout) {
  const int64_t H = layout.H, tp = layout.sizes.tp, heads = layout.N / tp * layout.D;
  const bool sums = layout.sequence_parallel;
  constexpr int64_t kByHead = 1;
  std::vector<std::vector<Piece>> units = {{{up_to(layout.V, tp) / tp * H}, {layout.S * H}}};
  std::vector<int64_t> gathers = {1 + kByHead};
  const auto norm = [&] { units.back().insert(units.back().end(), 2, {H, sums}); };
  for (int64_t layer = 0; layer < layout.L; ++layer) {
    units.emplace_back();
    gathers.push_back(2);
    std::vector<Piece>& pieces = units.back();
    norm();
    for (int i = 0; i < 3; ++i) pieces.insert(pieces.end(), {{heads * H}, {heads}});
    pieces.insert(pieces.end(), {{H * heads}, {H}});
    norm();
    pieces.push_back({layout.E * H, sums});  // router
    for (int64_t j = 0; j < layout.shared; ++j)
      for (const Piece& piece : feed_forward(layout)) pieces.push_back(piece);
  }
  units.emplace_back();
  gathers.push_back(kByHead);
  norm();
  return shared(layout, units, gathers, layout.data_ranks());
}

std::vector<Shared> experts(const Layout& layout) {
  std::vector<std::vector<Piece>> units(static_cast<size_t>(layout.L));
  for (std::vector<Piece>& unit : units)
    for (int64_t expert = 0; expert < layout.E / layout.sizes.ep; ++expert)
      for (const Piece& piece : feed_forward(layout)) unit.push_back(piece);
  return shared(layout, units, std::vector<int64_t>(units.size(), 2), layout.sizes.dp);
}

int64_t reduced_and_gathered(const Layout& layout, const std::vector<Shared>& all, int64_t ranks) {
  const int64_t m = layout.microbatches();
  int64_t elements = 0;
  for (const auto& [bucket, gathers] : all) {
    const int64_t times = layout.zero < 2 ? 2 : layout.zero == 2 ? m + 1 : m * (1 + gathers);
    elements += times * (bucket.elements / ranks * (ranks - 1));
  }
  return elements;
}

int64_t data_bytes(const Layout& layout, int64_t d, int64_t rank) {
  constexpr int64_t kSumWords = 72;
  const int64_t ranks = layout.sizes.ranks();
  int64_t elements = all_reduced(1, layout.data_ranks(), d);  // count of tokens
  elements += all_reduced(2 * kSumWords, ranks, rank);        // loss and norm
  if (layout.has_bias) elements += all_reduced(2 * kSumWords + 2 + layout.L * layout.E, ranks, rank);  // loads
  elements += reduced_and_gathered(layout, dense(layout), layout.data_ranks());
  elements += reduced_and_gathered(layout, experts(layout), layout.sizes.dp);
  return kElement * elements;
}

int64_t tensor_bytes(const Layout& layout, int64_t d, int64_t t, int64_t e) {
  const int64_t tp = layout.sizes.tp, H = layout.H, tokens = layout.tokens();
  if (tp == 1) return 0;
  int64_t microbatch = 3 * tokens * (tp - 1);  // the head's statistics
  if (layout.splits()) {
    const int64_t others = tokens / tp * (tp - 1) * H;  // of a gather as of a scatter
    const int64_t own = received(layout, t, e);
    int64_t all = 0;
    for (int64_t rank = 0; rank < tp; ++rank) all += received(layout, rank, e);
    // Attention and shared experts gather and scatter each way and gather the input again; so do experts, what arrived.
    microbatch += others * (5 * (1 + layout.shared) * layout.L + 2 + 2);
    if (layout.recomputes) microbatch += (others * (2 + layout.shared) + ((all - own) + own * (tp - 1)) * H) * layout.L;
    microbatch += (3 * own * (tp - 1) + 2 * (all - own)) * H * layout.L;
  } else {
    microbatch += all_reduced(tokens * H, tp, t) * (2 * (1 + layout.shared) * layout.L + 2);
    microbatch += all_reduced(received(layout, t, e) * H, tp, t) * 2 * layout.L;
    if (layout.recomputes)
      microbatch += (all_reduced(tokens * H, tp, t) + all_reduced(received(layout, t, e) * H, tp, t)) * layout.L;
  }
  int64_t updated = 0;
  for (const auto& [bucket, gathers] : dense(layout)) {
    const int64_t piece = bucket.elements / layout.data_ranks();
    const int64_t begin = layout.zero == 0 ? 0 : d * piece, end = layout.zero == 0 ? bucket.elements : begin + piece;
    for (size_t i = 0; i < bucket.pieces.size(); ++i)
      if (bucket.pieces[i].summed_by_tensor_ranks)
        updated += std::max<int64_t>(
            0, std::min(end, bucket.begins[i] + bucket.pieces[i].elements) - std::max(begin, bucket.begins[i]));
  }
  return kElement * (layout.microbatches() * microbatch + all_reduced(updated, tp, t));
}

void require_closed_form(const Layout& layout) {
  INFO(layout.text());
  const PerAxis<int64_t> bytes = train(layout.overrides(), layout.sizes).comm_bytes.front();
  const Sizes& sizes = layout.sizes;
  PerAxis<int64_t> most;  // of any rank
  for (int64_t rank = 0; rank < sizes.ranks(); ++rank) {
    const int64_t t = rank % sizes.tp, d = rank / sizes.tp, e = d % sizes.ep;
    most[Axis::ep] = std::max(most[Axis::ep], expert_bytes(layout, t, e));
    most[Axis::dp] = std::max(most[Axis::dp], data_bytes(layout, d, rank));
    most[Axis::tp] = std::max(most[Axis::tp], tensor_bytes(layout, d, t, e));
  }
  for (const Axis axis : kAxes) {
    INFO(name_of(axis));
    REQUIRE(bytes[axis] == most[axis]);
  }
}

}  // namespace

TEST_CASE("what ranks along ep hand over is the closed form, to the byte", "[quick][traffic][moe]") {
  for (const Sizes& sizes : {Sizes{.ep = 2}, Sizes{.ep = 4}, Sizes{.ep = 8}, Sizes{.dp = 2, .ep = 2}})
    for (const int64_t zero : {0, 1, 2, 3}) require_closed_form({.sizes = sizes, .zero = zero});
  require_closed_form({.sizes = {.ep = 2}, .micro_batch = 4});
  // Three choices of nine experts do not come out even over 16 positions.
  require_closed_form({.sizes = {.ep = 1}, .E = 9, .K = 3});
  for (const int64_t zero : {1, 2, 3})
    require_closed_form({.sizes = {.dp = 2, .ep = 4}, .E = 12, .K = 3, .shared = 1, .zero = zero});
  require_closed_form({.sizes = {.ep = 2}, .K = 1, .has_capacity = true});
  require_closed_form({.sizes = {.dp = 2, .ep = 2}, .has_bias = true});
}

TEST_CASE("what ranks along ep and tp hand over is the closed form, to the byte", "[quick][traffic][moe]") {
  for (const bool splits : {true, false}) {
    require_closed_form({.sizes = {.tp = 2}, .sequence_parallel = splits});
    require_closed_form({.sizes = {.tp = 2, .ep = 2}, .shared = 1, .sequence_parallel = splits});
    require_closed_form({.sizes = {.tp = 4, .ep = 2}, .E = 6, .K = 1, .sequence_parallel = splits});
    for (const int64_t zero : {0, 2, 3})
      require_closed_form({.sizes = {.dp = 2, .tp = 2, .ep = 2}, .zero = zero, .sequence_parallel = splits});
    require_closed_form({.sizes = {.tp = 2, .ep = 4}, .sequence_parallel = splits, .has_capacity = true});
  }
}

TEST_CASE("recomputed experts have their rows sent again, to the byte", "[quick][traffic][moe][recompute]") {
  for (const int64_t zero : {1, 3})
    require_closed_form({.sizes = {.dp = 2, .ep = 2}, .zero = zero, .recomputes = true});
  for (const bool splits : {true, false})
    require_closed_form({.sizes = {.tp = 2, .ep = 2},
                         .shared = 1,
                         .sequence_parallel = splits,
                         .has_capacity = true,
                         .recomputes = true});
}

TEST_CASE("experts' gradients stay off the wire where one data rank holds them", "[quick][traffic][moe]") {
  // Twice as many experts, half of them a rank: nothing more under dp but their routers.
  const auto data = [](int64_t experts) {
    const Layout layout = {.sizes = {.ep = 2}, .E = experts};
    return train(layout.overrides(), layout.sizes).comm_bytes.front()[Axis::dp];
  };
  const int64_t routers = 2 * 8 * 32;
  REQUIRE(data(16) - data(8) == kElement * routers);
}

}  // namespace quintet::testing
