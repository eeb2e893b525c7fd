#include "lib/parallel/parameter_store.h"

#include <algorithm>
#include <numeric>

#include "lib/base/integers.h"
#include "lib/base/parallel.h"
#include "lib/base/random.h"

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
  parameter.shape_ = shard_shape(spec, mesh_);
  parameter.spec_ = std::move(spec);
  return parameter;
}

void ParameterStore::lay_out(const device::ElementTypes& types, int64_t bucket_bytes) {
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
                       round_up(youngest->elements, kParameterAlignment) + parameter->elements() <= bucket_elements;
    if (!joins) buckets_.push_back({.data_axes = axes, .begin = 0, .elements = 0, .parameters = {}});
    Bucket& bucket = joins ? *youngest : buckets_.back();
    parameter->bucket_ = &bucket - buckets_.data();
    parameter->offset_ = round_up(bucket.elements, kParameterAlignment);
    bucket.parameters.push_back(&*parameter);
    bucket.elements = parameter->offset_ + parameter->elements();
  }
  int64_t begin = 0;
  for (Bucket& bucket : buckets_) {
    bucket.begin = begin;
    bucket.elements = round_up(bucket.elements, std::lcm(mesh_.size(bucket.data_axes), kBucketAlignment));
    begin += bucket.elements;
  }
  for (Parameter& parameter : parameters_)
    if (parameter.spec().trained) parameter.offset_ += buckets_[static_cast<size_t>(parameter.bucket_)].begin;
}

void ParameterStore::allocate(device::Device& device, device::MemoryLedger& ledger) {
  weights_ = device::Buffer(device, ledger, "weights", types_.compute, flat_elements());
  gradients_ = device::Buffer(device, ledger, "gradients", types_.gradients, flat_elements());
  int64_t untrained = 0;
  for (const Parameter& parameter : parameters_)
    if (!parameter.spec().trained) untrained += parameter.elements();
  untrained_ = device::Buffer(device, ledger, "weights", types_.statistics, untrained);
  untrained = 0;
  for (Parameter& parameter : parameters_) {
    if (parameter.spec().trained) {
      parameter.weight_ = weights_.slice(parameter.offset_, parameter.elements()).reshaped(parameter.shape_);
      parameter.gradient_ = gradients_.slice(parameter.offset_, parameter.elements()).reshaped(parameter.shape_);
    } else {
      parameter.weight_ = untrained_.slice(untrained, parameter.elements()).reshaped(parameter.shape_);
      untrained += parameter.elements();
    }
  }
}

void ParameterStore::initialise(device::Device& device, uint64_t seed) {
  for (const Parameter& parameter : parameters_)
    draw(device, seed, {&parameter, parameter.offset(), parameter.elements()},
         parameter.weight().reshaped({parameter.elements()}));
}

void ParameterStore::draw(device::Device& device, uint64_t seed, const ParameterSpan& span, Tensor values) const {
  using Drawn = float;
  constexpr int64_t kGrain = 4096, kChunk = int64_t{1} << 22;  // elements on the host at a time
  const ParameterSpec& spec = span.parameter->spec();
  const uint64_t stream = stream_of("init", spec.name);
  std::vector<Drawn> drawn(static_cast<size_t>(std::min(span.count, kChunk)));
  for (int64_t done = 0; done < span.count; done += kChunk) {
    const int64_t first = span.begin - span.parameter->offset() + done, count = std::min(span.count - done, kChunk);
    parallel_for(device.threads(), count, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t element = global_element(spec, mesh_, coordinate_, first + i);
        double value = element == kPadding ? 0 : spec.init.value;
        if (spec.init.kind == Init::Kind::normal && element != kPadding)
          value *= normal(seed, static_cast<uint64_t>(element), stream);
        drawn[static_cast<size_t>(i)] = static_cast<Drawn>(value);
      }
    });
    device.copy(Tensor(drawn.data(), kDTypeOf<Drawn>, {count}), values.rows(done, count));
  }
}

int64_t ParameterStore::flat_elements() const {
  return buckets_.empty() ? 0 : buckets_.back().begin + buckets_.back().elements;
}

std::vector<ParameterSpan> ParameterStore::spans(const Bucket& bucket, int64_t begin, int64_t count) {
  std::vector<ParameterSpan> spans;
  for (const Parameter* parameter : bucket.parameters) {
    const int64_t first = std::max(begin, parameter->offset());
    const int64_t last = std::min(begin + count, parameter->offset() + parameter->elements());
    if (first < last) spans.push_back({parameter, first, last - first});
  }
  return spans;
}

}  // namespace quintet::parallel
