// Ring attention (Liu et al. 2023): keys and values go round, each rank computes with what is there. Forward merges by
// log-sum-exp; backward sends the gradients of a block along behind it.
#include <array>
#include <vector>

#include "lib/parallel/context_methods.h"

namespace quintet::parallel {
namespace {

constexpr int64_t kNone = -1;

// Whose block is where: at hop h = 0 .. ranks - 1 a rank computes with the block of the h-th rank before it.
class Ring {
 public:
  explicit Ring(const ContextRegion& region)
      : ranks_(region.ranks()),
        rank_(region.rank()),
        wraps_(region.config().balance == config::ContextBalance::zigzag) {}

  // Whether blocks go on from the last rank to the first. They do not where later ranks hold later positions only.
  bool wraps() const { return wraps_; }
  int64_t next() const { return (rank_ + 1) % ranks_; }
  int64_t previous() const { return (rank_ + ranks_ - 1) % ranks_; }
  // The rank whose block is here at a hop; kNone where there is none any more.
  int64_t block(int64_t hop) const {
    if (hop >= ranks_ || (!wraps_ && hop > rank_)) return kNone;
    return (rank_ + ranks_ - hop) % ranks_;
  }
  bool goes_on(int64_t hop) const { return hop + 1 < ranks_ && (wraps_ || rank_ + 1 < ranks_); }
  // Where this rank's own block is computed with last; kNone if nowhere else.
  int64_t last_visited() const {
    if (wraps_) return previous();
    return rank_ + 1 < ranks_ ? ranks_ - 1 : kNone;
  }

 private:
  int64_t ranks_, rank_;
  bool wraps_;
};

// Keys and values of a rank, or their gradients: [T, N_kv * D] each.
struct Block {
  Tensor key, value;
};

Block allocate_block(const ContextAttention& layer, DType dtype, const Shape& shape) {
  const Tensor key = layer.scratch.allocate(dtype, shape);
  return {key, layer.scratch.allocate(dtype, shape)};
}

void clear(const ContextAttention& layer, const Block& block) {
  layer.device.fill(block.key, 0);
  layer.device.fill(block.value, 0);
}

void add(const ContextAttention& layer, const Block& more, const Block& sum) {
  layer.device.add_dropout(sum.key, more.key, {}, sum.key);
  layer.device.add_dropout(sum.value, more.value, {}, sum.value);
}

// Blocks on their way.
class Transfers {
 public:
  void send(const ContextAttention& layer, const Block& block, int64_t to, const char* what) {
    comm::ProcessGroup& group = layer.region.group();
    for (const Tensor& tensor : {block.key, block.value}) handles_.push_back(group.send(tensor, to, layer.name + what));
  }
  void receive(const ContextAttention& layer, const Block& block, int64_t from, const char* what) {
    comm::ProcessGroup& group = layer.region.group();
    for (const Tensor& tensor : {block.key, block.value})
      handles_.push_back(group.receive(tensor, from, layer.name + what));
  }
  void wait() {
    for (comm::Handle& handle : handles_) handle.wait();
    handles_.clear();
  }

 private:
  std::vector<comm::Handle> handles_;
};

// Takes each rank's block in the order of the ring while the next one is on its way. compute(hop, rank, block) may post
// transfers of its own; what it posts comes behind the hop's. `begin_hop` comes before.
template <typename BeginHop, typename Compute>
void go_round(const ContextAttention& layer, const Ring& ring, const Block& own, const BeginHop& begin_hop,
              const Compute& compute) {
  constexpr const char* kWhat = " keys and values";
  const std::array<Block, 2> buffers = {allocate_block(layer, own.key.dtype(), own.key.shape()),
                                        allocate_block(layer, own.key.dtype(), own.key.shape())};
  Block here = own;
  for (int64_t hop = 0; ring.block(hop) != kNone; ++hop) {
    const Block& coming = buffers[static_cast<size_t>(hop % 2)];
    begin_hop(hop);
    Transfers transfers;
    if (ring.block(hop + 1) != kNone) transfers.receive(layer, coming, ring.previous(), kWhat);
    if (ring.goes_on(hop)) transfers.send(layer, here, ring.next(), kWhat);
    compute(hop, ring.block(hop), here);
    transfers.wait();
    here = coming;
  }
}

// product(query chunk of this rank, key chunk of `rank`, its positions) where the former sees the latter.
template <typename Product>
void for_each_product(const ContextAttention& layer, int64_t rank, const Product& product) {
  const std::vector<data::Chunk>& queries = layer.region.chunks();
  const std::vector<data::Chunk>& keys = layer.region.chunks_of(rank);
  for (size_t i = 0; i < queries.size(); ++i)
    for (size_t j = 0; j < keys.size(); ++j)
      if (sees(queries[i], keys[j])) {
        product(i, j, keys[j]);
        layer.region.progress();
      }
}

}  // namespace

void ring_forward(const ContextAttention& layer, Tensor query, Tensor key, Tensor value, Tensor output,
                  Tensor log_sum_exp) {
  const device::ArenaScope scope(layer.scratch);
  const DType arithmetic = log_sum_exp.dtype();
  const WideSum running(layer, arithmetic, output);
  const int64_t length = layer.region.chunks().front().length;
  const Tensor partial = layer.scratch.allocate(arithmetic, {layer.sequences, length, layer.heads, layer.head_dim});
  const Tensor partial_log_sum_exp = layer.scratch.allocate(arithmetic, {layer.sequences, layer.heads, length});
  std::vector<bool> begun(layer.region.chunks().size(), false);
  const auto compute = [&](int64_t, int64_t rank, const Block& block) {
    for_each_product(layer, rank, [&](size_t i, size_t j, const data::Chunk& keys) {
      const Tensor sum = chunk_of(layer, running.sum, i, layer.heads);
      const Tensor statistics = chunk_statistics(layer, log_sum_exp, i);
      layer.device.attention_forward({.query = chunk_of(layer, query, i, layer.heads),
                                      .key = chunk_of(layer, block.key, j, layer.key_heads),
                                      .value = chunk_of(layer, block.value, j, layer.key_heads),
                                      .first_query = layer.region.chunks()[i].begin,
                                      .first_key = keys.begin,
                                      .document_starts = chunk_starts(layer, i),
                                      .output = begun[i] ? partial : sum,
                                      .log_sum_exp = begun[i] ? partial_log_sum_exp : statistics});
      if (begun[i])
        layer.device.attention_merge({.partial_output = partial,
                                      .partial_log_sum_exp = partial_log_sum_exp,
                                      .output = sum,
                                      .log_sum_exp = statistics});
      begun[i] = true;
    });
  };
  go_round(
      layer, Ring(layer.region), {key, value}, [](int64_t) {}, compute);
  running.round(layer.device);
}

// The block of rank s visits s + 1, s + 2, ... Its gradients arise at the first of them, follow it, take each one's
// part and go home from the last, where the own part is added.
void ring_backward(const ContextAttention& layer, const ContextAttention::Backward& operands) {
  constexpr const char* kWhat = " key and value gradients";
  const device::ArenaScope scope(layer.scratch);
  const DType arithmetic = operands.log_sum_exp.dtype();
  const Shape shape = operands.key.shape();
  const Ring ring(layer.region);
  const WideSum d_query(layer, arithmetic, operands.d_query);
  const WideSum d_key(layer, arithmetic, operands.d_key), d_value(layer, arithmetic, operands.d_value);
  const Block own = {d_key.sum, d_value.sum};
  const Block part = allocate_block(layer, arithmetic, shape), home = allocate_block(layer, arithmetic, shape);
  const std::array<Block, 2> sums = {allocate_block(layer, arithmetic, shape),
                                     allocate_block(layer, arithmetic, shape)};
  layer.device.fill(d_query.sum, 0);

  std::array<Transfers, 2> sent;
  Transfers arriving, homecoming;
  const auto expect_home = [&] {
    if (ring.last_visited() != kNone) homecoming.receive(layer, home, ring.last_visited(), kWhat);
  };
  if (!ring.wraps()) expect_home();  // from a rank that sends nothing else here
  const auto begin_hop = [&](int64_t hop) {
    const auto place = static_cast<size_t>(hop % 2);
    sent[place].wait();
    if (hop >= 2) arriving.receive(layer, sums[place], ring.previous(), kWhat);
  };
  const auto compute = [&](int64_t hop, int64_t rank, const Block& block) {
    const Block& sum = sums[static_cast<size_t>(hop % 2)];
    const Block& gradients = hop == 0 ? own : hop == 1 ? sum : part;
    clear(layer, gradients);
    for_each_product(layer, rank, [&](size_t i, size_t j, const data::Chunk& keys) {
      layer.device.attention_backward({.query = chunk_of(layer, operands.query, i, layer.heads),
                                       .key = chunk_of(layer, block.key, j, layer.key_heads),
                                       .value = chunk_of(layer, block.value, j, layer.key_heads),
                                       .first_query = layer.region.chunks()[i].begin,
                                       .first_key = keys.begin,
                                       .document_starts = chunk_starts(layer, i),
                                       .output = chunk_of(layer, operands.output, i, layer.heads),
                                       .log_sum_exp = chunk_statistics(layer, operands.log_sum_exp, i),
                                       .d_output = chunk_of(layer, operands.d_output, i, layer.heads),
                                       .d_query = chunk_of(layer, d_query.sum, i, layer.heads),
                                       .d_key = chunk_of(layer, gradients.key, j, layer.key_heads),
                                       .d_value = chunk_of(layer, gradients.value, j, layer.key_heads),
                                       .accumulate = true});
    });
    arriving.wait();
    if (hop >= 2) add(layer, part, sum);
    if (hop >= 1) sent[static_cast<size_t>(hop % 2)].send(layer, sum, ring.goes_on(hop) ? ring.next() : rank, kWhat);
  };
  go_round(layer, ring, {operands.key, operands.value}, begin_hop, compute);
  if (ring.wraps()) expect_home();  // behind all else that the previous rank sends
  homecoming.wait();
  if (ring.last_visited() != kNone) add(layer, home, own);
  for (Transfers& transfers : sent) transfers.wait();
  for (const WideSum& sum : {d_query, d_key, d_value}) sum.round(layer.device);
}

}  // namespace quintet::parallel
