// The product mesh dp x tp x pp x ep x cp and its groups.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace quintet {

enum class Axis : uint8_t { dp, tp, pp, ep, cp };
inline constexpr int kAxisCount = 5;
inline constexpr std::array<Axis, kAxisCount> kAxes = {Axis::dp, Axis::tp, Axis::pp, Axis::ep, Axis::cp};

constexpr std::string_view name_of(Axis axis) {
  constexpr std::array<std::string_view, kAxisCount> kNames = {"dp", "tp", "pp", "ep", "cp"};
  return kNames[static_cast<size_t>(axis)];
}

// One value for each axis.
template <typename T>
struct PerAxis {
  std::array<T, kAxisCount> values{};
  constexpr T& operator[](Axis axis) { return values[static_cast<size_t>(axis)]; }
  constexpr const T& operator[](Axis axis) const { return values[static_cast<size_t>(axis)]; }
  bool operator==(const PerAxis&) const = default;
};

// A set of axes, as a mask.
class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr AxisSet(std::initializer_list<Axis> axes) {
    for (const Axis axis : axes) mask_ |= bit(axis);
  }
  static constexpr AxisSet all() { return {Axis::dp, Axis::tp, Axis::pp, Axis::ep, Axis::cp}; }

  constexpr bool contains(Axis axis) const { return (mask_ & bit(axis)) != 0; }
  constexpr AxisSet with(Axis axis) const { return AxisSet(static_cast<uint8_t>(mask_ | bit(axis))); }
  constexpr AxisSet without(Axis axis) const { return AxisSet(static_cast<uint8_t>(mask_ & ~bit(axis))); }
  constexpr uint8_t mask() const { return mask_; }
  constexpr bool operator==(const AxisSet&) const = default;

 private:
  explicit constexpr AxisSet(uint8_t mask) : mask_(mask) {}
  static constexpr uint8_t bit(Axis axis) { return static_cast<uint8_t>(1U << static_cast<unsigned>(axis)); }
  uint8_t mask_ = 0;
};

// "dp+ep+cp".
std::string name_of(AxisSet axes);

using Coordinate = PerAxis<int64_t>;

class Mesh {
 public:
  // Sizes are at least 1. `order` names every axis once, the fastest-varying first: its neighbours are adjacent ranks.
  Mesh(const PerAxis<int64_t>& sizes, const std::array<Axis, kAxisCount>& order);

  int64_t world_size() const { return world_size_; }
  int64_t size(Axis axis) const { return sizes_[axis]; }
  int64_t size(AxisSet axes) const;
  const std::array<Axis, kAxisCount>& order() const { return order_; }

  Coordinate coordinate_of(int64_t rank) const;
  int64_t rank_of(const Coordinate& coordinate) const;

  // The ranks that differ from `rank` only along `axes`, `rank` included, in ascending order.
  std::vector<int64_t> group_of(int64_t rank, AxisSet axes) const;
  // Those along `axis` in the same block of `size` consecutive coordinates; `size` divides the axis. Ascending.
  std::vector<int64_t> block_of(int64_t rank, Axis axis, int64_t size) const;
  // The first and the last along `axis`, whether or not `rank` is one of them; a single rank on an axis of size 1.
  std::vector<int64_t> ends_of(int64_t rank, Axis axis) const;

  // "rank 5 (dp 0, tp 1, pp 1)": only axes of more than one rank are named.
  std::string label_of(int64_t rank) const;

  bool operator==(const Mesh&) const = default;

 private:
  PerAxis<int64_t> sizes_;
  std::array<Axis, kAxisCount> order_;
  PerAxis<int64_t> strides_;
  int64_t world_size_ = 1;
};

}  // namespace quintet
