// ZeRO 2 and 3: a unit has whole gradients while a microbatch's backward adds to them. They are then reduce-scattered,
// and this rank's piece is added to the step's, in the order of microbatches: 4/d bytes a parameter in fp32, and two
// units.
#include <algorithm>
#include <optional>
#include <vector>

#include "lib/optimizer/gradient_policy.h"
#include "lib/optimizer/unit_buffers.h"

namespace quintet::optimizer {
namespace {

class ShardedGradients final : public GradientPolicy {
 public:
  explicit ShardedGradients(const GradientContext& context)
      : context_(context),
        buffers_(context.device, context.ledger, device::Owner::gradient_units, context.store.types().gradients,
                 context.store),
        places_(buffers_.places()),
        place_of_(context.store.units().size()) {}

  void begin_step(int64_t microbatches) override {
    microbatches_ = microbatches;
    added_.assign(place_of_.size(), 0);
  }

  void before(const parallel::Unit& unit) override {
    if (buffers_.buckets_of(unit).empty() || place_of_[unit.index]) return;
    const size_t place = free_place(unit);
    settle(place);
    for (size_t i = 0; i < buffers_.buckets_of(unit).size(); ++i) {
      const Tensor gradients = buffers_.bucket_in(place, unit, i);
      context_.device.fill(gradients, 0);
      context_.store.bind_gradients(*buffers_.buckets_of(unit)[i], gradients);
    }
    places_[place].unit = &unit;
    places_[place].in_use = true;
    places_[place].turn = ++turns_;
    place_of_[unit.index] = place;
  }

  void complete(const parallel::Unit& unit) override {
    const std::optional<size_t> place = release(unit);
    if (!place) return;
    for (size_t i = 0; i < buffers_.buckets_of(unit).size(); ++i) {
      const parallel::Bucket& bucket = *buffers_.buckets_of(unit)[i];
      const Tensor gradients = buffers_.bucket_in(*place, unit, i);
      comm::ProcessGroup& group = data_group(context_.communicator, bucket.data_axes);
      places_[*place].reductions.push_back(group.reduce_scatter(
          gradients, group.even_counts(bucket.all.count), own_part(bucket, gradients), "gradients of " + unit.name));
      if (!context_.overlap) places_[*place].reductions.back().wait();
    }
    if (!context_.overlap) settle(*place);
  }

  void discard(const parallel::Unit& unit) override { release(unit); }

  void finish() override {
    // In the order in which they were completed: two may be of one unit.
    std::vector<size_t> order(places_.size());
    for (size_t place = 0; place < order.size(); ++place) order[place] = place;
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return places_[a].turn < places_[b].turn; });
    for (const size_t place : order) settle(place);
    for (const parallel::Unit& unit : context_.store.units())
      QUINTET_CHECK(buffers_.buckets_of(unit).empty() || added_[unit.index] == microbatches_,
                    "{} has gradients of {} microbatches, not {}", unit.name, added_[unit.index], microbatches_);
  }

 private:
  struct Place {
    const parallel::Unit* unit = nullptr;
    bool in_use = false;
    int64_t turn = 0;                      // when it was taken
    std::vector<comm::Handle> reductions;  // of each bucket, from complete() to settle()
  };

  // The one taken longest ago, of those not in use.
  size_t free_place(const parallel::Unit& unit) const {
    std::optional<size_t> oldest;
    for (const size_t place : buffers_.places_of(unit))
      if (!places_[place].in_use && (!oldest || places_[place].turn < places_[*oldest].turn)) oldest = place;
    QUINTET_CHECK(oldest.has_value(), "no place for the gradients of {}", unit.name);
    return *oldest;
  }

  // Ends the unit's use of its place, if it has one, and returns it.
  std::optional<size_t> release(const parallel::Unit& unit) {
    const std::optional<size_t> place = place_of_[unit.index];
    if (!place) return place;
    for (const parallel::Bucket* bucket : buffers_.buckets_of(unit)) context_.store.bind_gradients(*bucket, {});
    places_[*place].in_use = false;
    place_of_[unit.index].reset();
    return place;
  }

  // Waits for the reductions from the place and adds what they found to the step's gradients.
  void settle(size_t place) {
    Place& settled = places_[place];
    if (settled.reductions.empty()) return;
    const parallel::Unit& unit = *settled.unit;
    for (size_t i = 0; i < settled.reductions.size(); ++i) {
      settled.reductions[i].wait();
      const parallel::Bucket& bucket = *buffers_.buckets_of(unit)[i];
      const Shape row = {1, bucket.own.count};
      const Tensor piece = own_part(bucket, buffers_.bucket_in(place, unit, i)).reshaped(row);
      const Tensor sum = context_.store.gradients(bucket.own).reshaped(row);
      if (added_[unit.index] == 0) {
        context_.device.copy(piece, sum);
      } else {
        context_.device.add_dropout(sum, piece, {}, sum);
      }
    }
    settled.reductions.clear();
    ++added_[unit.index];
  }

  GradientContext context_;
  UnitBuffers buffers_;
  std::vector<Place> places_;
  std::vector<std::optional<size_t>> place_of_;  // each unit's, from before() to complete()
  int64_t turns_ = 0, microbatches_ = 0;
  std::vector<int64_t> added_;  // microbatches of each unit that are in the step's gradients
};

}  // namespace

std::unique_ptr<GradientPolicy> make_sharded_gradients(const GradientContext& context) {
  return std::make_unique<ShardedGradients>(context);
}

}  // namespace quintet::optimizer
