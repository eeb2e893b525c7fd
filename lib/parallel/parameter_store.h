// All parameters of a rank in flat buffers: one for weights, one for gradients, cut into buckets that are reduced and
// gathered as wholes. Parameters stand in the order in which backward finishes them, so that a bucket's reduction can
// start while earlier layers still compute.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "lib/device/element_types.h"
#include "lib/device/memory.h"
#include "lib/parallel/parameter.h"

namespace quintet::parallel {

// A run of the flat buffers. Every parameter in it starts at a multiple of 64 elements, and its end is padded to a
// multiple of lcm(ranks that share the reduction, 128), so that it falls into equal pieces for them. Experts have
// buckets apart from what all ranks along ep hold, and a tied embedding that two stages hold has one of its own.
struct Bucket {
  AxisSet data_axes;     // of its parameters
  int64_t begin = 0;     // in the flat buffers
  int64_t elements = 0;  // padding included
  std::vector<const Parameter*> parameters;
};

// A parameter's elements within some range of the flat buffers.
struct ParameterSpan {
  const Parameter* parameter;
  int64_t begin;  // in the flat buffers
  int64_t count;
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

  // Lays out the buckets. `bucket_bytes` bounds a bucket's gradients; a parameter larger than that has a bucket of its
  // own.
  void lay_out(const device::ElementTypes& types, int64_t bucket_bytes);
  // Takes the memory, zeroed. What is not trained lies outside of the flat buffers, in the type of statistics.
  void allocate(device::Device& device, device::MemoryLedger& ledger);

  // Fills the weights. Element i of a tensor is drawn by (seed, i, name) and rounded to fp32, so that every mesh and
  // every precision starts from the same bits.
  void initialise(device::Device& device, uint64_t seed);
  // The same values in fp32 for some elements, which may be a master copy: `values`, in the device's memory.
  void draw(device::Device& device, uint64_t seed, const ParameterSpan& span, Tensor values) const;

  const std::deque<Parameter>& parameters() const { return parameters_; }
  const std::deque<Unit>& units() const { return units_; }
  std::span<const Bucket> buckets() const { return buckets_; }
  // Elements of the flat buffers, padding included.
  int64_t flat_elements() const;
  const device::ElementTypes& types() const { return types_; }
  const Mesh& mesh() const { return mesh_; }
  const Coordinate& coordinate() const { return coordinate_; }

  Tensor weights(int64_t begin, int64_t count) const { return weights_.slice(begin, count); }
  Tensor gradients(int64_t begin, int64_t count) const { return gradients_.slice(begin, count); }
  Tensor all_gradients() const { return gradients_.tensor(); }

  // The parameters, or parts of them, between `begin` and `begin + count` of a bucket's range.
  static std::vector<ParameterSpan> spans(const Bucket& bucket, int64_t begin, int64_t count);

 private:
  const Mesh& mesh_;
  Coordinate coordinate_;
  std::deque<Parameter> parameters_;
  std::deque<Unit> units_;
  std::vector<Unit*> open_units_;
  std::vector<Bucket> buckets_;
  device::ElementTypes types_;
  device::Buffer weights_, gradients_, untrained_;
};

}  // namespace quintet::parallel
