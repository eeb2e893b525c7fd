#include "lib/optimizer/gathered_weights.h"

#include "lib/optimizer/gradient_policy.h"

namespace quintet::optimizer {

GatheredWeights::GatheredWeights(device::Device& device, device::MemoryLedger& ledger, comm::Communicator& communicator,
                                 parallel::ParameterStore& store, bool overlap)
    : communicator_(communicator),
      store_(store),
      overlap_(overlap),
      buffers_(device, ledger, device::Owner::gathered_units, store.types().compute, store),
      places_(buffers_.places()),
      uses_(store.units().size(), 0),
      place_of_(store.units().size()) {}

void GatheredWeights::begin(bool training) {
  drop_ahead();
  training_ = training;
  orders_[training_ ? 1 : 0].next = 0;
}

void GatheredWeights::before(const parallel::Unit& unit) {
  if (buffers_.buckets_of(unit).empty() || uses_[unit.index]++ > 0) return;
  note(unit);
  if (ahead_ && places_[*ahead_].unit != &unit) drop_ahead();
  const std::optional<size_t> place = ahead_ ? ahead_ : start(unit);
  ahead_.reset();
  QUINTET_CHECK(place.has_value(), "no place for the weights of {}", unit.name);
  finish(*place);
  bind(unit, place);
  const Order& order = orders_[training_ ? 1 : 0];
  if (overlap_ && order.next < order.units.size()) ahead_ = start(*order.units[order.next]);
}

void GatheredWeights::after(const parallel::Unit& unit) {
  if (buffers_.buckets_of(unit).empty() || --uses_[unit.index] > 0) return;
  places_[*place_of_[unit.index]].unit = nullptr;
  bind(unit, {});
}

std::optional<size_t> GatheredWeights::start(const parallel::Unit& unit) {
  std::optional<size_t> oldest;
  for (const size_t place : buffers_.places_of(unit))
    if (places_[place].unit == nullptr && (!oldest || places_[place].turn < places_[*oldest].turn)) oldest = place;
  if (!oldest) return oldest;
  Place& place = places_[*oldest];
  place.unit = &unit;
  place.turn = ++turns_;
  for (size_t i = 0; i < buffers_.buckets_of(unit).size(); ++i) {
    const parallel::Bucket& bucket = *buffers_.buckets_of(unit)[i];
    comm::ProcessGroup& group = data_group(communicator_, bucket.data_axes, /*counted=*/training_);
    place.gathers.push_back(group.all_gather(store_.weights(bucket.own), group.even_counts(bucket.all.count),
                                             buffers_.bucket_in(*oldest, unit, i), "weights of " + unit.name));
    if (!overlap_) place.gathers.back().wait();
  }
  return oldest;
}

void GatheredWeights::drop_ahead() {
  if (!ahead_) return;
  finish(*ahead_);
  places_[*ahead_].unit = nullptr;
  ahead_.reset();
}

void GatheredWeights::finish(size_t place) {
  for (comm::Handle& gather : places_[place].gathers) gather.wait();
  places_[place].gathers.clear();
}

void GatheredWeights::bind(const parallel::Unit& unit, std::optional<size_t> place) {
  place_of_[unit.index] = place;
  for (size_t i = 0; i < buffers_.buckets_of(unit).size(); ++i)
    store_.bind_weights(*buffers_.buckets_of(unit)[i], place ? buffers_.bucket_in(*place, unit, i) : Tensor{});
}

void GatheredWeights::note(const parallel::Unit& unit) {
  Order& order = orders_[training_ ? 1 : 0];
  if (order.next < order.units.size() && order.units[order.next] != &unit) order.units.resize(order.next);
  if (order.next == order.units.size()) order.units.push_back(&unit);
  ++order.next;
}

}  // namespace quintet::optimizer
