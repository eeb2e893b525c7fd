// Units of parameters: what is gathered, used, released and reduced together. Layers tell one observer of every use,
// and a stage of ZeRO is what the observer does then (lib/optimizer).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace quintet::parallel {

class Parameter;

// The embedding, a block (without its experts), a block's experts of this rank, or the head.
struct Unit {
  std::string name;  // "embedding", "layers.3", "layers.3.moe.experts", "head"
  size_t index = 0;  // in the store: units are numbered in forward order
  std::vector<const Parameter*> parameters;
  bool lent = false;  // to a layer of another unit
};

// What a layer does with a unit's parameters for one microbatch.
enum class Use : uint8_t {
  forward,
  backward,         // both parts
  backward_input,   // the gradient of the input only
  backward_weight,  // the gradients of the parameters only
  // Both parts, in a layer that borrows a parameter of another unit: the head, where the embedding's table is its
  // weight. What it adds is completed by the owner's backward for this microbatch, which follows.
  backward_borrowed,
};

constexpr bool needs_weights(Use use) { return use != Use::backward_weight; }
constexpr bool adds_gradients(Use use) {
  return use == Use::backward || use == Use::backward_weight || use == Use::backward_borrowed;
}
// Whether the unit's gradients of this microbatch are complete after the use.
constexpr bool completes_gradients(Use use) { return use == Use::backward || use == Use::backward_weight; }

// Told around every use, in the order of computation. Weights, where the use needs them, and gradients, where it adds
// to them, are the parameters' own from the end of before() to the beginning of after(). Uses may nest, also of one
// unit.
class UnitObserver {
 public:
  UnitObserver() = default;
  virtual ~UnitObserver() = default;
  UnitObserver(const UnitObserver&) = delete;
  UnitObserver& operator=(const UnitObserver&) = delete;

  virtual void before(const Unit& unit, Use use) = 0;
  virtual void after(const Unit& unit, Use use) = 0;
};

}  // namespace quintet::parallel
