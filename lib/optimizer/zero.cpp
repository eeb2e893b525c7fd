#include "lib/optimizer/zero.h"

#include <algorithm>

namespace quintet::optimizer {

using parallel::Extent;

ZeroExtents extents_of(int64_t zero_stage) {
  const auto from = [&](int64_t stage) { return zero_stage >= stage ? Extent::own_piece : Extent::whole; };
  return {.weights = from(3), .gradients = from(2), .state = from(1)};
}

ZeroOptimizer::ZeroOptimizer(device::Device& device, device::MemoryLedger& ledger, comm::Communicator& communicator,
                             parallel::ParameterStore& store, const config::Optimizer& config, const config::Zero& zero)
    : device_(device),
      ledger_(ledger),
      communicator_(communicator),
      store_(store),
      config_(config),
      sums_whole_(zero.stage == 0),
      overlap_(zero.overlap) {
  const ZeroExtents extents = extents_of(zero.stage);
  store.allocate(device, ledger, extents.weights, extents.gradients);
  const device::ElementTypes& types = store.types();
  const auto state = [&](device::Owner owner) {
    return parallel::FlatBuffer(device, ledger, owner, types.state, store.buckets(), extents.state);
  };
  first_moment_ = state(device::Owner::moments);
  second_moment_ = state(device::Owner::moments);
  if (types.has_masters()) master_ = state(device::Owner::master_weights);
  const GradientContext context = {
      .device = device, .ledger = ledger, .communicator = communicator, .store = store, .overlap = overlap_};
  gradients_ =
      extents.gradients == Extent::whole ? make_whole_gradients(context, sums_whole_) : make_sharded_gradients(context);
  if (extents.weights == Extent::own_piece) gathered_.emplace(device, ledger, communicator, store, overlap_);
  std::vector<parallel::ParameterSpan> updated;
  for (const parallel::Bucket& bucket : store.buckets()) {
    const auto spans = parallel::ParameterStore::spans(bucket, held(bucket, extents.state));
    updated.insert(updated.end(), spans.begin(), spans.end());
  }
  replica_sums_.emplace(device, ledger, communicator, store, updated);
}

void ZeroOptimizer::initialise(uint64_t seed) {
  store_.initialise(device_, seed);
  if (!store_.types().has_masters()) return;
  for (const parallel::Bucket& bucket : store_.buckets())
    for (const parallel::ParameterSpan& span : parallel::ParameterStore::spans(bucket, held(bucket, master_.extent())))
      store_.draw(device_, seed, span, master_.slice(span.range));
}

void ZeroOptimizer::begin_step(int64_t microbatches) {
  look_ = {};
  gradients_->begin_step(microbatches);
  if (gathered_) gathered_->begin(/*training=*/true);
}

void ZeroOptimizer::begin_evaluation() {
  if (gathered_) gathered_->begin(/*training=*/false);
}

void ZeroOptimizer::begin_search(Look look) {
  begin_step(0);
  look_ = std::move(look);
}

void ZeroOptimizer::before(const parallel::Unit& unit, parallel::Use use) {
  if (gathered_ && needs_weights(use)) gathered_->before(unit);
  if (adds_gradients(use)) gradients_->before(unit);
}

void ZeroOptimizer::after(const parallel::Unit& unit, parallel::Use use) {
  communicator_.progress();
  if (completes_gradients(use) && look_) {
    for (const parallel::Parameter* parameter : unit.parameters)
      if (parameter->spec().trained) look_(*parameter);
    gradients_->discard(unit);
  } else if (completes_gradients(use)) {
    gradients_->complete(unit);
  }
  if (gathered_ && needs_weights(use)) gathered_->after(unit);
}

void ZeroOptimizer::finish_reduction() {
  gradients_->finish();
  replica_sums_->sum();
}

void ZeroOptimizer::add_squared_norm(ExactSum& sum) {
  // Of ranks that hold the same parameter the first counts; data ranks count their own pieces.
  std::vector<Tensor> counted;
  for (const parallel::Bucket& bucket : store_.buckets())
    for (const parallel::ParameterSpan& span : parallel::ParameterStore::spans(bucket, bucket.own))
      if (parallel::is_first_holder(span.parameter->spec(), store_.mesh(), store_.coordinate()))
        counted.push_back(store_.gradients(span.range));
  device_.squared_norm(counted, sum);
}

void ZeroOptimizer::update(double learning_rate, double gradient_scale) {
  ++updates_;
  const device::AdamwStep step{.learning_rate = learning_rate,
                               .beta1 = config_.betas[0],
                               .beta2 = config_.betas[1],
                               .epsilon = config_.epsilon,
                               .weight_decay = config_.weight_decay,
                               .gradient_scale = gradient_scale,
                               .update = updates_};
  const Extent state = first_moment_.extent();
  const bool shares_weights = state == Extent::own_piece && store_.weights_extent() == Extent::whole;
  std::vector<comm::Handle> gathers;
  for (size_t i = 0; i < store_.buckets().size(); ++i) {
    const parallel::Bucket& bucket = store_.buckets()[i];
    std::vector<device::AdamwSpan> spans;
    for (const parallel::ParameterSpan& span : parallel::ParameterStore::spans(bucket, held(bucket, state)))
      spans.push_back({.weight = store_.weights(span.range),
                       .gradient = store_.gradients(span.range),
                       .first_moment = first_moment_.slice(span.range),
                       .second_moment = second_moment_.slice(span.range),
                       .master = store_.types().has_masters() ? master_.slice(span.range) : Tensor{},
                       .decay = span.parameter->decays()});
    device_.adamw(spans, step);
    if (!shares_weights) continue;
    comm::ProcessGroup& group = data_group(communicator_, bucket.data_axes);
    gathers.push_back(group.all_gather(store_.weights(bucket.own), group.even_counts(bucket.all.count),
                                       store_.weights(bucket.all), fmt::format("weights of bucket {}", i)));
    if (!overlap_) gathers.back().wait();
  }
  for (comm::Handle& gather : gathers) gather.wait();
}

Tensor ZeroOptimizer::whole(const parallel::Parameter& parameter, Values values, device::Buffer& memory) {
  const bool weights = values == Values::weights;
  if (!parameter.spec().trained) return weights ? parameter.weight() : Tensor{};
  const parallel::Range range = {parameter.offset(), parameter.elements()};
  const parallel::Bucket& bucket = store_.buckets()[static_cast<size_t>(parameter.bucket())];
  const auto values_of = [&](parallel::Range part) { return weights ? store_.weights(part) : store_.gradients(part); };
  // Where reduced gradients are whole by their extent, stage 1 has summed the own piece only.
  if (weights ? store_.weights_extent() == Extent::whole : sums_whole_)
    return values_of(range).reshaped(parameter.shape());

  comm::ProcessGroup& group = data_group(communicator_, bucket.data_axes, /*counted=*/false);
  std::vector<int64_t> counts;  // of the parameter's elements that each data rank owns
  parallel::Range own;
  for (int64_t member = 0; member < group.size(); ++member) {
    const int64_t begin = bucket.all.begin + member * bucket.own.count;
    const int64_t first = std::clamp(begin, range.begin, range.end());
    counts.push_back(std::clamp(begin + bucket.own.count, range.begin, range.end()) - first);
    if (member == group.rank()) own = {first, counts.back()};
  }
  const DType dtype = weights ? store_.types().compute : store_.types().gradients;
  if (memory.tensor().dtype() != dtype || memory.tensor().elements() < range.count)
    memory = device::Buffer(device_, ledger_, device::Owner::workspace, dtype, range.count);
  const Tensor gathered = memory.slice(0, range.count);
  group.all_gather(own.count > 0 ? values_of(own) : gathered.rows(0, 0), counts, gathered, "a dump").wait();
  return gathered.reshaped(parameter.shape());
}

}  // namespace quintet::optimizer
