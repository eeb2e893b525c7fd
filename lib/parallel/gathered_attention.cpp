#include "lib/parallel/context_methods.h"

namespace quintet::parallel {
namespace {

// Keys or values of whole sequences on their way here.
struct Gathered {
  Tensor by_rank;  // [cp * T, width]
  comm::Handle done;
};

Gathered start_gather(const ContextAttention& layer, Tensor own, const char* what) {
  comm::ProcessGroup& group = layer.region.group();
  const Tensor all = layer.scratch.allocate(own.dtype(), {own.size(0) * group.size(), own.size(1)});
  return {all, group.all_gather(own, group.even_counts(all.elements()), all, layer.name + what)};
}

Tensor heads_of_sequences(const ContextAttention& layer, Tensor rows) {
  return rows.reshaped({layer.sequences, layer.region.sequence_length(), layer.key_heads, layer.head_dim});
}

// Of whole sequences in the order of their positions, [B, S, N_kv, D].
struct KeysAndValues {
  Tensor key, value;
};

KeysAndValues gather(const ContextAttention& layer, Tensor key, Tensor value) {
  const Shape all = {key.size(0) * layer.region.ranks(), key.size(1)};
  const Tensor all_keys = layer.scratch.allocate(key.dtype(), all);
  const Tensor all_values = layer.scratch.allocate(key.dtype(), all);
  const device::ArenaScope scope(layer.scratch);
  Gathered keys = start_gather(layer, key, " keys"), values = start_gather(layer, value, " values");
  keys.done.wait();
  layer.region.to_sequences(layer.device, keys.by_rank, all_keys);
  values.done.wait();
  layer.region.to_sequences(layer.device, values.by_rank, all_values);
  return {heads_of_sequences(layer, all_keys), heads_of_sequences(layer, all_values)};
}

}  // namespace

void gathered_forward(const ContextAttention& layer, Tensor query, Tensor key, Tensor value, Tensor output,
                      Tensor log_sum_exp) {
  const device::ArenaScope scope(layer.scratch);
  const KeysAndValues all = gather(layer, key, value);
  for (size_t i = 0; i < layer.region.chunks().size(); ++i)
    layer.device.attention_forward({.query = chunk_of(layer, query, i, layer.heads),
                                    .key = all.key,
                                    .value = all.value,
                                    .first_query = layer.region.chunks()[i].begin,
                                    .document_starts = chunk_starts(layer, i),
                                    .output = chunk_of(layer, output, i, layer.heads),
                                    .log_sum_exp = chunk_statistics(layer, log_sum_exp, i)});
}

void gathered_backward(const ContextAttention& layer, const ContextAttention::Backward& operands) {
  const device::ArenaScope scope(layer.scratch);
  const DType arithmetic = operands.log_sum_exp.dtype();
  const KeysAndValues all = gather(layer, operands.key, operands.value);
  const Shape every = {operands.key.size(0) * layer.region.ranks(), operands.key.size(1)};
  const Tensor d_keys = layer.scratch.allocate(arithmetic, every), d_values = layer.scratch.allocate(arithmetic, every);
  const WideSum d_query(layer, arithmetic, operands.d_query);
  for (const Tensor& sum : {d_query.sum, d_keys, d_values}) layer.device.fill(sum, 0);
  for (size_t i = 0; i < layer.region.chunks().size(); ++i)
    layer.device.attention_backward({.query = chunk_of(layer, operands.query, i, layer.heads),
                                     .key = all.key,
                                     .value = all.value,
                                     .first_query = layer.region.chunks()[i].begin,
                                     .document_starts = chunk_starts(layer, i),
                                     .output = chunk_of(layer, operands.output, i, layer.heads),
                                     .log_sum_exp = chunk_statistics(layer, operands.log_sum_exp, i),
                                     .d_output = chunk_of(layer, operands.d_output, i, layer.heads),
                                     .d_query = chunk_of(layer, d_query.sum, i, layer.heads),
                                     .d_key = heads_of_sequences(layer, d_keys),
                                     .d_value = heads_of_sequences(layer, d_values),
                                     .accumulate = true});
  d_query.round(layer.device);

  const WideSum d_key(layer, arithmetic, operands.d_key), d_value(layer, arithmetic, operands.d_value);
  const auto start_scatter = [&](Tensor sequences, const WideSum& own, const char* what) {
    const Tensor by_rank = layer.scratch.allocate(arithmetic, every);
    layer.region.from_sequences(layer.device, sequences, by_rank);
    comm::ProcessGroup& group = layer.region.group();
    return group.reduce_scatter(by_rank, group.even_counts(every.elements()), own.sum, layer.name + what);
  };
  comm::Handle keys = start_scatter(d_keys, d_key, " key gradients");
  comm::Handle values = start_scatter(d_values, d_value, " value gradients");
  keys.wait();
  d_key.round(layer.device);
  values.wait();
  d_value.round(layer.device);
}

}  // namespace quintet::parallel
