#include "lib/optimizer/zero.h"

#include "lib/base/integers.h"

namespace quintet::optimizer {
ZeroOptimizer::ZeroOptimizer(device::Device& device, device::MemoryLedger& ledger, comm::Communicator& communicator,
                             parallel::ParameterStore& store, const config::Optimizer& config, const config::Zero& zero)
    : device_(device),
      communicator_(communicator),
      store_(store),
      config_(config),
      shards_state_(zero.stage >= 1),
      overlap_(zero.overlap) {
  int64_t elements = 0;
  std::vector<parallel::ParameterSpan> updated_spans;
  for (const parallel::Bucket& bucket : store.buckets()) {
    state_offset_.push_back(elements);
    const Range range = updated(bucket);
    elements += range.count;
    const auto spans = parallel::ParameterStore::spans(bucket, range.begin, range.count);
    updated_spans.insert(updated_spans.end(), spans.begin(), spans.end());
  }
  replica_sums_.emplace(device, ledger, communicator, store, updated_spans);
  const device::ElementTypes& types = store.types();
  first_moment_ = device::Buffer(device, ledger, "optimizer", types.state, elements);
  second_moment_ = device::Buffer(device, ledger, "optimizer", types.state, elements);
  if (types.has_masters()) master_ = device::Buffer(device, ledger, "master weights", types.state, elements);
}

void ZeroOptimizer::initialise(uint64_t seed) {
  if (!store_.types().has_masters()) return;
  for (size_t i = 0; i < store_.buckets().size(); ++i) {
    const Range range = updated(store_.buckets()[i]);
    for (const parallel::ParameterSpan& span :
         parallel::ParameterStore::spans(store_.buckets()[i], range.begin, range.count))
      store_.draw(device_, seed, span, master_.slice(state_offset_[i] + span.begin - range.begin, span.count));
  }
}

comm::ProcessGroup& ZeroOptimizer::group_of(const parallel::Bucket& bucket) const {
  return communicator_.group(bucket.data_axes, Axis::dp);
}

comm::ProcessGroup& ZeroOptimizer::uncounted_group_of(const parallel::Bucket& bucket) const {
  return communicator_.group(bucket.data_axes, std::nullopt);
}

ZeroOptimizer::Range ZeroOptimizer::owned(const parallel::Bucket& bucket) const {
  const comm::ProcessGroup& group = group_of(bucket);
  const int64_t piece = div_exact(bucket.elements, group.size());
  return {bucket.begin + group.rank() * piece, piece};
}

ZeroOptimizer::Range ZeroOptimizer::updated(const parallel::Bucket& bucket) const {
  return shards_state_ ? owned(bucket) : Range{bucket.begin, bucket.elements};
}

void ZeroOptimizer::begin_step(int64_t microbatches) {
  device_.fill(store_.all_gradients(), 0);
  open_.assign(store_.units().size(), microbatches);
  missing_.clear();
  for (const parallel::Bucket& bucket : store_.buckets()) missing_.push_back(bucket.parameters.size());
  reductions_.clear();
}

void ZeroOptimizer::begin_pass_without_reduction() {
  device_.fill(store_.all_gradients(), 0);
  open_.clear();
}

void ZeroOptimizer::before(const parallel::Unit& /*unit*/, parallel::Use /*use*/) {}

void ZeroOptimizer::after(const parallel::Unit& unit, parallel::Use use) {
  communicator_.progress();
  if (!parallel::completes_gradients(use) || open_.empty()) return;
  QUINTET_CHECK(open_[unit.index] > 0, "{} has more backward passes than microbatches", unit.name);
  if (--open_[unit.index] > 0) return;
  for (auto parameter = unit.parameters.rbegin(); parameter != unit.parameters.rend(); ++parameter) {
    if (!(*parameter)->spec().trained) continue;
    const auto bucket = static_cast<size_t>((*parameter)->bucket());
    if (--missing_[bucket] == 0 && overlap_) start_reduction(bucket);
  }
}

void ZeroOptimizer::start_reduction(size_t index) {
  const parallel::Bucket& bucket = store_.buckets()[index];
  const Tensor gradients = store_.gradients(bucket.begin, bucket.elements);
  const std::string what = fmt::format("gradients of bucket {}", index);
  comm::ProcessGroup& group = group_of(bucket);
  if (!shards_state_) {
    reductions_.push_back(group.all_reduce(gradients, comm::Reduction::sum, what));
    return;
  }
  const Range piece = owned(bucket);
  reductions_.push_back(group.reduce_scatter(gradients, group.even_counts(bucket.elements),
                                             store_.gradients(piece.begin, piece.count), what));
}

void ZeroOptimizer::finish_reduction() {
  for (size_t i = 0; i < missing_.size(); ++i) {
    QUINTET_CHECK(missing_[i] == 0, "{} gradients of bucket {} are missing", missing_[i], i);
    if (overlap_) continue;
    start_reduction(i);
    reductions_.back().wait();
  }
  for (comm::Handle& reduction : reductions_) reduction.wait();
  replica_sums_->sum();
}

void ZeroOptimizer::add_squared_norm(ExactSum& sum) {
  // Of ranks that hold the same parameter the first counts; data ranks count their own pieces.
  std::vector<Tensor> counted;
  for (const parallel::Bucket& bucket : store_.buckets()) {
    const Range piece = owned(bucket);
    for (const parallel::ParameterSpan& span : parallel::ParameterStore::spans(bucket, piece.begin, piece.count))
      if (parallel::is_first_holder(span.parameter->spec(), store_.mesh(), store_.coordinate()))
        counted.push_back(store_.gradients(span.begin, span.count));
  }
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
  std::vector<comm::Handle> gathers;
  for (size_t i = 0; i < store_.buckets().size(); ++i) {
    const parallel::Bucket& bucket = store_.buckets()[i];
    const Range range = updated(bucket);
    std::vector<device::AdamwSpan> spans;
    for (const parallel::ParameterSpan& span : parallel::ParameterStore::spans(bucket, range.begin, range.count)) {
      const int64_t state = state_offset_[i] + span.begin - range.begin;
      spans.push_back({.weight = store_.weights(span.begin, span.count),
                       .gradient = store_.gradients(span.begin, span.count),
                       .first_moment = first_moment_.slice(state, span.count),
                       .second_moment = second_moment_.slice(state, span.count),
                       .master = store_.types().has_masters() ? master_.slice(state, span.count) : Tensor{},
                       .decay = span.parameter->decays()});
    }
    device_.adamw(spans, step);
    if (!shards_state_) continue;
    comm::ProcessGroup& group = group_of(bucket);
    gathers.push_back(group.all_gather(store_.weights(range.begin, range.count), group.even_counts(bucket.elements),
                                       store_.weights(bucket.begin, bucket.elements),
                                       fmt::format("weights of bucket {}", i)));
    if (!overlap_) gathers.back().wait();
  }
  for (comm::Handle& gather : gathers) gather.wait();
}

void ZeroOptimizer::gather_gradients() {
  if (!shards_state_) return;
  for (const parallel::Bucket& bucket : store_.buckets()) {
    const Range piece = owned(bucket);
    comm::ProcessGroup& group = uncounted_group_of(bucket);
    group
        .all_gather(store_.gradients(piece.begin, piece.count), group.even_counts(bucket.elements),
                    store_.gradients(bucket.begin, bucket.elements), "gradients for a dump")
        .wait();
  }
}

}  // namespace quintet::optimizer
