// All parameters of a rank, by unit and in one flat numbering that is cut into buckets. Parameters are numbered in the
// order in which backward finishes them, so that a bucket's reduction can start while earlier layers still compute.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "lib/device/element_types.h"
#include "lib/device/memory.h"
#include "lib/parallel/flat_buffer.h"
#include "lib/parallel/parameter.h"

namespace quintet::parallel {

// A parameter's elements within some range of the flat numbering.
struct ParameterSpan {
  const Parameter* parameter;
  Range range;
};

class ParameterStore {
 public:
  ParameterStore(const Mesh& mesh, const Coordinate& coordinate) : mesh_(mesh), coordinate_(coordinate) {}
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  // What is added from here to its end belongs to a new unit of this name; the reference stays valid. A unit may begin
  // within another, which goes on afterwards.
  const Unit& begin_unit(std::string name);
  void end_unit();
  // Registers a parameter of the unit that began last; the reference stays valid. Layers register in forward order.
  Parameter& add(ParameterSpec spec);
  // A layer outside of the unit uses its parameters, too.
  void lend(const Unit& unit);

  // Numbers the parameters and lays out the buckets. `bucket_bytes` bounds a bucket's gradients; a parameter larger
  // than that has a bucket of its own. With `by_unit` no bucket holds parameters of two units.
  void lay_out(const device::ElementTypes& types, int64_t bucket_bytes, bool by_unit = false);
  // Takes the memory, zeroed. What is not trained lies outside of the flat buffers, in the type of statistics. Where
  // only this rank's pieces are held, parameters have no weights or gradients before they are bound.
  void allocate(device::Device& device, device::MemoryLedger& ledger, Extent weights = Extent::whole,
                Extent gradients = Extent::whole);
  // Makes `values`, the whole of the bucket, its parameters' weights or gradients; absent: they have none.
  void bind_weights(const Bucket& bucket, Tensor values) { bind(bucket, values, &Parameter::weight_); }
  void bind_gradients(const Bucket& bucket, Tensor values) { bind(bucket, values, &Parameter::gradient_); }

  // Fills the weights that are held. Element i of a tensor is drawn by (seed, i, name) and rounded to fp32, so that
  // every mesh and every precision starts from the same bits.
  void initialise(device::Device& device, uint64_t seed);
  // The same values in fp32 for some elements, which may be a master copy: `values`, in the device's memory.
  void draw(device::Device& device, uint64_t seed, const ParameterSpan& span, Tensor values) const;

  const std::deque<Parameter>& parameters() const { return parameters_; }
  const std::deque<Unit>& units() const { return units_; }
  std::span<const Bucket> buckets() const { return buckets_; }
  // The buckets that hold parameters of the unit.
  std::vector<const Bucket*> buckets_of(const Unit& unit) const;
  // Elements that a rank holds of all buckets, padding included.
  int64_t elements(Extent extent) const;
  const device::ElementTypes& types() const { return types_; }
  const Mesh& mesh() const { return mesh_; }
  const Coordinate& coordinate() const { return coordinate_; }

  // Of a range that is held.
  Tensor weights(Range range) const { return weights_.slice(range); }
  Tensor gradients(Range range) const { return gradients_.slice(range); }
  Tensor all_gradients() const { return gradients_.tensor(); }
  Extent weights_extent() const { return weights_.extent(); }
  Extent gradients_extent() const { return gradients_.extent(); }

  // The parameters, or parts of them, within a part of the bucket.
  static std::vector<ParameterSpan> spans(const Bucket& bucket, Range range);

 private:
  void bind(const Bucket& bucket, Tensor values, Tensor Parameter::*view);

  const Mesh& mesh_;
  Coordinate coordinate_;
  std::deque<Parameter> parameters_;
  std::deque<Unit> units_;
  std::vector<Unit*> open_units_;
  std::vector<Bucket> buckets_;
  device::ElementTypes types_;
  FlatBuffer weights_, gradients_;
  device::Buffer untrained_;
};

}  // namespace quintet::parallel
