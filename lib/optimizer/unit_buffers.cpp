#include "lib/optimizer/unit_buffers.h"

#include <algorithm>
#include <map>

namespace quintet::optimizer {

UnitBuffers::UnitBuffers(device::Device& device, device::MemoryLedger& ledger, device::Owner owner, DType dtype,
                         const parallel::ParameterStore& store) {
  struct Kind {
    int64_t elements = 0;
    std::vector<const parallel::Unit*> units;
  };
  std::map<uint8_t, Kind> kinds;  // by data axes
  const auto add_places = [&](size_t count, const Kind& kind) {
    for (size_t i = 0; i < count; ++i) {
      for (const parallel::Unit* unit : kind.units) units_[unit->index].places.push_back(memory_.size());
      memory_.emplace_back(device, ledger, owner, dtype, kind.elements);
    }
  };
  for (const parallel::Unit& unit : store.units()) {
    Layout& layout = units_.emplace_back();
    layout.buckets = store.buckets_of(unit);
    if (layout.buckets.empty()) continue;
    int64_t elements = 0;
    for (const parallel::Bucket* bucket : layout.buckets) {
      layout.begins.push_back(elements);
      elements += bucket->all.count;
    }
    if (unit.lent) {
      add_places(1, {elements, {&unit}});
      continue;
    }
    Kind& kind = kinds[layout.buckets.front()->data_axes.mask()];
    kind.elements = std::max(kind.elements, elements);
    kind.units.push_back(&unit);
  }
  for (const auto& [axes, kind] : kinds) add_places(std::min<size_t>(2, kind.units.size()), kind);
}

Tensor UnitBuffers::bucket_in(size_t place, const parallel::Unit& unit, size_t i) const {
  const Layout& layout = units_[unit.index];
  return memory_[place].slice(layout.begins[i], layout.buckets[i]->all.count);
}

}  // namespace quintet::optimizer
