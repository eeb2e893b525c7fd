// Ulysses (Jacobs et al. 2023, DeepSpeed Ulysses): an all-to-all turns a part of each sequence with all heads into
// whole sequences with a part of the heads, and back.
#include <vector>

#include "lib/base/integers.h"
#include "lib/parallel/context_methods.h"

namespace quintet::parallel {
namespace {

// One tensor of heads between the two divisions. Where there are fewer heads than ranks, neighbours share one.
class HeadExchange {
 public:
  HeadExchange(const ContextAttention& layer, int64_t heads)
      : layer_(layer),
        ranks_(layer.region.ranks()),
        heads_(heads),
        replicas_(heads < ranks_ ? div_exact(ranks_, heads) : 1),
        local_heads_(heads < ranks_ ? 1 : div_exact(heads, ranks_)) {}

  int64_t local_heads() const { return local_heads_; }
  int64_t replicas() const { return replicas_; }

  // [T, heads * D] to [B, S, local_heads, D].
  Tensor to_sequences(Tensor rows, const char* what) const {
    const Tensor sequences = pieces(rows.dtype());
    const device::ArenaScope scope(layer_.scratch);
    const Tensor outgoing = pieces(rows.dtype());
    const int64_t count = ranks_ / replicas_;  // of different pieces
    const Tensor different = outgoing.rows(0, count * layer_.rows());
    layer_.device.transpose_rows(rows.reshaped({layer_.rows(), count, width()}),
                                 different.reshaped({count, layer_.rows(), width()}));
    for (int64_t rank = ranks_ - 1; replicas_ > 1 && rank > 0; --rank)
      layer_.device.copy(piece(outgoing, rank / replicas_), piece(outgoing, rank));
    layer_.region.to_sequences(layer_.device, exchange(outgoing, what), sequences);
    return of_sequences(sequences);
  }

  // The other way; what ranks that share a head have of it is added up in their order.
  void from_sequences(Tensor sequences, Tensor rows, const char* what) const {
    const device::ArenaScope scope(layer_.scratch);
    const Tensor outgoing = pieces(rows.dtype());
    layer_.region.from_sequences(layer_.device, sequences.reshaped(outgoing.shape()), outgoing);
    const Tensor incoming = exchange(outgoing, what);
    for (int64_t head = 0; replicas_ > 1 && head < heads_; ++head) {
      const Tensor sum = piece(incoming, head * replicas_);
      for (int64_t other = 1; other < replicas_; ++other)
        layer_.device.add_dropout(sum, piece(incoming, head * replicas_ + other), {}, sum);
      if (head > 0) layer_.device.copy(sum, piece(incoming, head));
    }
    const int64_t count = ranks_ / replicas_;
    layer_.device.transpose_rows(incoming.rows(0, count * layer_.rows()).reshaped({count, layer_.rows(), width()}),
                                 rows.reshaped({layer_.rows(), count, width()}));
  }

  // A result [B, S, local_heads, D] of attention.
  Tensor allocate(DType dtype) const { return of_sequences(pieces(dtype)); }

 private:
  int64_t width() const { return local_heads_ * layer_.head_dim; }
  // [cp * T, width]: the rows of each rank.
  Tensor pieces(DType dtype) const { return layer_.scratch.allocate(dtype, {ranks_ * layer_.rows(), width()}); }
  Tensor piece(Tensor all, int64_t index) const { return all.rows(index * layer_.rows(), layer_.rows()); }
  Tensor of_sequences(Tensor rows) const {
    return rows.reshaped({layer_.sequences, layer_.region.sequence_length(), local_heads_, layer_.head_dim});
  }
  Tensor exchange(Tensor outgoing, const char* what) const {
    comm::ProcessGroup& group = layer_.region.group();
    const Tensor incoming = pieces(outgoing.dtype());
    const std::vector<int64_t> counts = group.even_counts(outgoing.elements());
    group.all_to_all(outgoing, counts, incoming, counts, layer_.name + what).wait();
    return incoming;
  }

  const ContextAttention& layer_;
  int64_t ranks_, heads_, replicas_, local_heads_;
};

Tensor sequence_starts(const ContextAttention& layer) {
  if (!layer.all_document_starts) return {};
  return layer.all_document_starts.reshaped({layer.sequences, layer.region.sequence_length()});
}

Tensor sequence_statistics(const ContextAttention& layer, const HeadExchange& queries, Tensor statistics) {
  return statistics.reshaped({layer.sequences, queries.local_heads(), layer.region.sequence_length()});
}

}  // namespace

void ulysses_forward(const ContextAttention& layer, Tensor query, Tensor key, Tensor value, Tensor output,
                     Tensor log_sum_exp) {
  const device::ArenaScope scope(layer.scratch);
  const HeadExchange queries(layer, layer.heads), keys(layer, layer.key_heads);
  const Tensor whole_query = queries.to_sequences(query, " queries");
  const Tensor whole_key = keys.to_sequences(key, " keys"), whole_value = keys.to_sequences(value, " values");
  const Tensor whole_output = queries.allocate(output.dtype());
  layer.device.attention_forward({.query = whole_query,
                                  .key = whole_key,
                                  .value = whole_value,
                                  .document_starts = sequence_starts(layer),
                                  .output = whole_output,
                                  .log_sum_exp = sequence_statistics(layer, queries, log_sum_exp)});
  queries.from_sequences(whole_output, output, " context");
}

void ulysses_backward(const ContextAttention& layer, const ContextAttention::Backward& operands) {
  const device::ArenaScope scope(layer.scratch);
  const HeadExchange queries(layer, layer.heads), keys(layer, layer.key_heads);
  const DType compute = operands.query.dtype(), arithmetic = operands.log_sum_exp.dtype();
  // Gradients of heads that ranks share are sums still to be made.
  const DType dtype = keys.replicas() > 1 ? arithmetic : compute;
  const Tensor d_query = queries.allocate(dtype), d_key = keys.allocate(dtype), d_value = keys.allocate(dtype);
  layer.device.attention_backward({.query = queries.to_sequences(operands.query, " queries again"),
                                   .key = keys.to_sequences(operands.key, " keys again"),
                                   .value = keys.to_sequences(operands.value, " values again"),
                                   .document_starts = sequence_starts(layer),
                                   .output = queries.to_sequences(operands.output, " context again"),
                                   .log_sum_exp = sequence_statistics(layer, queries, operands.log_sum_exp),
                                   .d_output = queries.to_sequences(operands.d_output, " context gradient"),
                                   .d_query = d_query,
                                   .d_key = d_key,
                                   .d_value = d_value});
  Tensor rounded = d_query;
  if (dtype != compute) {
    rounded = queries.allocate(compute);
    layer.device.copy(d_query, rounded);
  }
  queries.from_sequences(rounded, operands.d_query, " query gradient");
  const auto bring_home = [&](Tensor sequences, Tensor result, const char* what) {
    const WideSum sum(layer, dtype, result);
    keys.from_sequences(sequences, sum.sum, what);
    sum.round(layer.device);
  };
  bring_home(d_key, operands.d_key, " key gradient");
  bring_home(d_value, operands.d_value, " value gradient");
}

}  // namespace quintet::parallel
