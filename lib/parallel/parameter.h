// A parameter says once, where its layer is defined, what it is called and how it is split; everything else that needs
// to know (initialisation, reduction, norm, ZeRO partition, dumps, memory table) derives it from this statement.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
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

// `dimension` of the tensor is cut into equal pieces along `axis`. Axes that are not named replicate the tensor.
struct ShardedBy {
  Axis axis;
  int dimension;
  // What the dimension is widened to before it is cut; 0: as it is. Elements past the tensor's end are zero, get no
  // gradient and appear in no count, norm or file.
  int64_t padded = 0;
  // Fewer pieces than ranks: each is held by a block of neighbours along the axis, which see a part of its gradient
  // each (key heads, where there are more tensor ranks). 0: one a rank.
  int64_t pieces = 0;
};

// One of `count` experts of a layer, which are dealt to the ranks along ep in equal runs: one rank along ep holds the
// parameter, and its gradient is complete there but for the sum over dp and cp.
struct Expert {
  int64_t index = 0, count = 1;

  int64_t rank_of(const Mesh& mesh) const;  // along ep
};

struct ParameterSpec {
  std::string name;  // global, as in checkpoints: layers.3.attention.query.weight
  Shape shape;       // of the whole logical tensor, [out, in]
  std::vector<ShardedBy> shards;
  Init init;
  std::optional<Expert> expert;  // without: ranks along ep are data ranks
  // Otherwise something else than the optimizer sets it: it has no gradient, and counts in no norm.
  bool trained = true;
  // Every tensor rank holds all of it and sees a part of its gradient: norms where the sequence is split, norms of
  // heads. Other replicated parameters see the same whole gradient on each tensor rank.
  bool sums_over_tp = false;
  // A tied embedding: the first and the last pipeline stage both hold it, and each sees a part of its gradient.
  bool sums_over_ends = false;
};

// Along these axes ranks hold the same parameters, experts aside, and read different tokens.
inline constexpr AxisSet kDataAxes = {Axis::dp, Axis::ep, Axis::cp};

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
  // Ranks that read different data and sum their gradients.
  AxisSet data_axes() const { return spec_.expert ? AxisSet{Axis::dp, Axis::cp} : kDataAxes; }
  // Tensor ranks, neighbours along tp, that hold the same piece; 1: each has its own.
  int64_t tensor_replicas(const Mesh& mesh) const;

  Tensor weight() const { return weight_; }
  // Summed over microbatches; over ranks once the optimizer has reduced it. Absent where it is not trained.
  Tensor gradient() const { return gradient_; }

  // Where it lies in the store's flat buffers.
  int64_t bucket() const { return bucket_; }
  int64_t offset() const { return offset_; }

 private:
  friend class ParameterStore;
  ParameterSpec spec_;
  Shape shape_;
  Tensor weight_, gradient_;
  int64_t bucket_ = -1, offset_ = 0;
};

// Whether the rank at `coordinate` stands for the parameter in counts, norms and files: of all that hold the same
// elements, the first along tp and pp, and of an expert its rank along ep. Data ranks are not told apart.
bool is_first_holder(const ParameterSpec& spec, const Mesh& mesh, const Coordinate& coordinate);

constexpr int64_t kPadding = -1;
// The element of the whole tensor at which element `index` of the shard at `coordinate` stands, or kPadding.
int64_t global_element(const ParameterSpec& spec, const Mesh& mesh, const Coordinate& coordinate, int64_t index);
// The shape of a shard; every cut dimension must divide.
Shape shard_shape(const ParameterSpec& spec, const Mesh& mesh);

}  // namespace quintet::parallel
