// A parameter says once, where its layer is defined, what it is called and how it is split; everything else that needs
// to know (initialisation, reduction, norm, ZeRO partition, dumps, memory table) derives it from this statement.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lib/device/tensor.h"
#include "lib/mesh/mesh.h"
#include "lib/parallel/unit.h"

namespace quintet::parallel {

struct Init {
  enum class Kind : uint8_t { constant, normal };
  Kind kind = Kind::constant;
  double value = 0;  // the constant, or the standard deviation

  static Init zeros() { return {}; }
  static Init ones() { return {.kind = Kind::constant, .value = 1}; }
  static Init normal(double deviation) { return {.kind = Kind::normal, .value = deviation}; }
};

// What ranks along one axis hold of a parameter, and which part of its gradient each of them sees.
struct Placement {
  enum class Kind : uint8_t {
    same,        // all hold the same and see the whole gradient
    parts,       // all hold the same, and each sees a part of the gradient: a sum over them completes it
    end_parts,   // so for the first and the last along the axis; the others do not hold it
    split,       // cut into equal pieces along a dimension
    one_holder,  // one rank; along pp the one whose stage has the layer
  };
  Kind kind = Kind::same;

  // Split: the dimension.
  int dimension = 0;
  // What the dimension is widened to before it is cut; 0: as it is. Elements past the tensor's end are zero, get no
  // gradient and appear in no count, norm or file.
  int64_t padded = 0;
  // Fewer pieces than ranks: each is held by a block of neighbours along the axis, which see a part of its gradient
  // each (key heads, where there are more tensor ranks). 0: one a rank.
  int64_t pieces = 0;

  // One holder of `count` like this one (experts of a layer), which are dealt to the ranks in equal runs; this is
  // number `index`.
  int64_t index = 0, count = 1;

  static Placement same() { return {}; }
  static Placement parts() { return {.kind = Kind::parts}; }
  static Placement end_parts() { return {.kind = Kind::end_parts}; }
  static Placement split(int dimension, int64_t padded = 0, int64_t pieces = 0) {
    return {.kind = Kind::split, .dimension = dimension, .padded = padded, .pieces = pieces};
  }
  static Placement one_holder(int64_t index = 0, int64_t count = 1) {
    return {.kind = Kind::one_holder, .index = index, .count = count};
  }

  // Neighbours along an axis of `ranks` that hold the same.
  int64_t copies(int64_t ranks) const;
  // Of one holder: its place along an axis of `ranks`.
  int64_t holder(int64_t ranks) const;
};

// Of most parameters: one stage holds it, data ranks (along dp, ep and cp) read different tokens, tensor ranks as told.
PerAxis<Placement> placements(Placement along_tp = Placement::same());

struct ParameterSpec {
  std::string name;  // global, as in checkpoints: layers.3.attention.query.weight
  Shape shape;       // of the whole logical tensor, [out, in]
  PerAxis<Placement> along = placements();
  Init init;
  // Otherwise something else than the optimizer sets it: it has no gradient, and counts in no norm.
  bool trained = true;

  // Ranks that read different data and hold the same: their sum, the optimizer's, comes first.
  AxisSet data_axes() const;
  // An expert lies on one rank along ep.
  bool is_expert() const { return along[Axis::ep].kind == Placement::Kind::one_holder; }
};

// Ranks besides the data ranks that hold the same and see a part of the gradient each: `ranks` neighbours along `axis`,
// or along pp its two ends.
struct GradientSharers {
  Axis axis = Axis::tp;
  int64_t ranks = 1;  // 1: there are none
  bool operator<(const GradientSharers& other) const {
    return std::pair(axis, ranks) < std::pair(other.axis, other.ranks);
  }
};
GradientSharers gradient_sharers(const ParameterSpec& spec, const Mesh& mesh);

// A parameter as one rank holds it. Views are valid once the store has been allocated.
class Parameter {
 public:
  const ParameterSpec& spec() const { return spec_; }
  const std::string& name() const { return spec_.name; }
  // The shape of this rank's shard.
  const Shape& shape() const { return shape_; }
  int64_t elements() const { return shape_.elements(); }
  // Weight matrices decay, the embedding and position tables among them; vectors do not.
  bool decays() const { return spec_.shape.rank() >= 2; }
  AxisSet data_axes() const { return spec_.data_axes(); }

  // Absent between uses of its unit where ranks hold pieces of it only.
  Tensor weight() const { return weight_; }
  // Summed over microbatches; over ranks once the optimizer has reduced it. Absent where it is not trained, and as
  // weights are.
  Tensor gradient() const { return gradient_; }

  size_t unit() const { return unit_; }  // its index
  // Where it lies in the store's flat numbering.
  int64_t bucket() const { return bucket_; }
  int64_t offset() const { return offset_; }

 private:
  friend class ParameterStore;
  ParameterSpec spec_;
  Shape shape_;
  Tensor weight_, gradient_;
  size_t unit_ = 0;
  int64_t bucket_ = -1, offset_ = 0;
};

// Whether the rank at `coordinate` stands for the parameter in counts, norms and files: of all that hold the same
// elements the first along tp and pp; of one holder, that one. Data ranks are not told apart.
bool is_first_holder(const ParameterSpec& spec, const Mesh& mesh, const Coordinate& coordinate);

// The shape of a shard; every cut dimension must divide.
Shape shard_shape(const ParameterSpec& spec, const Mesh& mesh);

}  // namespace quintet::parallel
