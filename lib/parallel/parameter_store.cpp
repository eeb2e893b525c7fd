#include "lib/parallel/parameter_store.h"

#include <algorithm>
#include <numeric>

#include "lib/base/integers.h"
#include "lib/base/parallel.h"
#include "lib/base/random.h"
#include "lib/parallel/element_runs.h"

namespace quintet::parallel {
namespace {
constexpr int64_t kParameterAlignment = 64;
constexpr int64_t kBucketAlignment = 128;

// Both stages that hold it must cut it into the same pieces for their data ranks.
bool needs_own_bucket(const Parameter& parameter) {
  return parameter.spec().along[Axis::pp].kind == Placement::Kind::end_parts;
}

}  // namespace

const Unit& ParameterStore::begin_unit(std::string name) {
  Unit& unit = units_.emplace_back(Unit{.name = std::move(name), .index = units_.size(), .parameters = {}});
  open_units_.push_back(&unit);
  return unit;
}

void ParameterStore::end_unit() {
  QUINTET_CHECK(!open_units_.empty(), "no unit has begun");
  open_units_.pop_back();
}

Parameter& ParameterStore::add(ParameterSpec spec) {
  QUINTET_CHECK(buckets_.empty(), "{} comes after allocation", spec.name);
  QUINTET_CHECK(!open_units_.empty(), "{} belongs to no unit", spec.name);
  Parameter& parameter = parameters_.emplace_back();
  open_units_.back()->parameters.push_back(&parameter);
  parameter.unit_ = open_units_.back()->index;
  parameter.shape_ = shard_shape(spec, mesh_);
  parameter.spec_ = std::move(spec);
  return parameter;
}

void ParameterStore::lend(const Unit& unit) { units_[unit.index].lent = true; }

void ParameterStore::lay_out(const device::ElementTypes& types, int64_t bucket_bytes, bool by_unit) {
  types_ = types;
  const int64_t bucket_elements = bucket_bytes / size_of(types.gradients);
  // Parameters join the youngest bucket of their axes; offsets are within the bucket until all are known.
  for (auto parameter = parameters_.rbegin(); parameter != parameters_.rend(); ++parameter) {
    if (!parameter->spec().trained) continue;
    const AxisSet axes = parameter->data_axes();
    const auto youngest =
        std::find_if(buckets_.rbegin(), buckets_.rend(), [&](const Bucket& b) { return b.data_axes == axes; });
    const bool joins = youngest != buckets_.rend() && !needs_own_bucket(*parameter) &&
                       !needs_own_bucket(*youngest->parameters.back()) &&
                       (!by_unit || youngest->parameters.back()->unit() == parameter->unit()) &&
                       round_up(youngest->all.count, kParameterAlignment) + parameter->elements() <= bucket_elements;
    if (!joins) buckets_.push_back({.data_axes = axes, .all = {}, .own = {}, .parameters = {}});
    Bucket& bucket = joins ? *youngest : buckets_.back();
    parameter->bucket_ = &bucket - buckets_.data();
    parameter->offset_ = round_up(bucket.all.count, kParameterAlignment);
    bucket.parameters.push_back(&*parameter);
    bucket.all.count = parameter->offset_ + parameter->elements();
  }
  int64_t begin = 0;
  for (Bucket& bucket : buckets_) {
    const int64_t rank = mesh_.rank_of(coordinate_);
    const std::vector<int64_t> owners = mesh_.group_of(rank, bucket.data_axes);
    const int64_t place = std::find(owners.begin(), owners.end(), rank) - owners.begin();
    bucket.all = {begin, round_up(bucket.all.count, std::lcm(std::ssize(owners), kBucketAlignment))};
    bucket.own.count = div_exact(bucket.all.count, std::ssize(owners));
    bucket.own.begin = begin + place * bucket.own.count;
    begin = bucket.all.end();
  }
  for (Parameter& parameter : parameters_)
    if (parameter.spec().trained) parameter.offset_ += buckets_[static_cast<size_t>(parameter.bucket_)].all.begin;
}

void ParameterStore::allocate(device::Device& device, device::MemoryLedger& ledger, Extent weights, Extent gradients) {
  weights_ = FlatBuffer(device, ledger, device::Owner::weights, types_.compute, buckets_, weights);
  gradients_ = FlatBuffer(device, ledger, device::Owner::gradients, types_.gradients, buckets_, gradients);
  for (const Bucket& bucket : buckets_) {
    if (weights == Extent::whole) bind_weights(bucket, weights_.slice(bucket.all));
    if (gradients == Extent::whole) bind_gradients(bucket, gradients_.slice(bucket.all));
  }
  int64_t untrained = 0;
  for (const Parameter& parameter : parameters_)
    if (!parameter.spec().trained) untrained += parameter.elements();
  untrained_ = device::Buffer(device, ledger, device::Owner::weights, types_.statistics, untrained);
  untrained = 0;
  for (Parameter& parameter : parameters_) {
    if (parameter.spec().trained) continue;
    parameter.weight_ = untrained_.slice(untrained, parameter.elements()).reshaped(parameter.shape_);
    untrained += parameter.elements();
  }
}

void ParameterStore::bind(const Bucket& bucket, Tensor values, Tensor Parameter::*view) {
  for (Parameter* parameter : bucket.parameters)
    parameter->*view =
        values ? values.rows(parameter->offset() - bucket.all.begin, parameter->elements()).reshaped(parameter->shape())
               : Tensor{};
}

void ParameterStore::initialise(device::Device& device, uint64_t seed) {
  for (const Bucket& bucket : buckets_)
    for (const ParameterSpan& span : spans(bucket, held(bucket, weights_.extent())))
      draw(device, seed, span, weights_.slice(span.range));
  for (const Parameter& parameter : parameters_)
    if (!parameter.spec().trained)
      draw(device, seed, {&parameter, {0, parameter.elements()}}, parameter.weight().reshaped({parameter.elements()}));
}

void ParameterStore::draw(device::Device& device, uint64_t seed, const ParameterSpan& span, Tensor values) const {
  if (!device.computes()) return;
  using Drawn = float;
  constexpr int64_t kGrain = 4096, kChunk = int64_t{1} << 22;  // elements on the host at a time
  const ParameterSpec& spec = span.parameter->spec();
  const uint64_t stream = stream_of("init", spec.name);
  std::vector<Drawn> drawn(static_cast<size_t>(std::min(span.range.count, kChunk)));
  for (int64_t done = 0; done < span.range.count; done += kChunk) {
    const int64_t first = span.range.begin - span.parameter->offset() + done,
                  count = std::min(span.range.count - done, kChunk);
    parallel_for(device.threads(), count, kGrain, [&](int64_t begin, int64_t end) {
      std::fill(drawn.begin() + begin, drawn.begin() + end, Drawn{0});  // what padding keeps
      for_each_run(spec, mesh_, coordinate_, first + begin, end - begin, [&](const ElementRun& run) {
        Drawn* values_of_run = drawn.data() + (run.shard - first);
        for (int64_t i = 0; i < run.count; ++i) {
          double value = spec.init.value;
          if (spec.init.kind == Init::Kind::normal) value *= normal(seed, static_cast<uint64_t>(run.whole + i), stream);
          values_of_run[i] = static_cast<Drawn>(value);
        }
      });
    });
    device.copy(Tensor(drawn.data(), kDTypeOf<Drawn>, {count}), values.rows(done, count));
  }
}

std::vector<const Bucket*> ParameterStore::buckets_of(const Unit& unit) const {
  std::vector<const Bucket*> buckets;
  for (const Parameter* parameter : unit.parameters) {
    if (!parameter->spec().trained) continue;
    const Bucket* bucket = &buckets_[static_cast<size_t>(parameter->bucket())];
    if (std::find(buckets.begin(), buckets.end(), bucket) == buckets.end()) buckets.push_back(bucket);
  }
  return buckets;
}

int64_t ParameterStore::elements(Extent extent) const {
  int64_t elements = 0;
  for (const Bucket& bucket : buckets_) elements += held(bucket, extent).count;
  return elements;
}

std::vector<ParameterSpan> ParameterStore::spans(const Bucket& bucket, Range range) {
  std::vector<ParameterSpan> spans;
  for (const Parameter* parameter : bucket.parameters) {
    const int64_t first = std::max(range.begin, parameter->offset());
    const int64_t last = std::min(range.end(), parameter->offset() + parameter->elements());
    if (first < last) spans.push_back({parameter, {first, last - first}});
  }
  return spans;
}

}  // namespace quintet::parallel
