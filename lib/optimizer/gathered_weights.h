// ZeRO 3: weights are kept as pieces, and a unit's are gathered for the time of each use. The order of uses is learned
// in the first run of a kind; from then on the next unit's gather starts when a unit's use begins, so that it travels
// while layers compute.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "lib/comm/communicator.h"
#include "lib/optimizer/unit_buffers.h"
#include "lib/parallel/parameter_store.h"

namespace quintet::optimizer {

class GatheredWeights {
 public:
  GatheredWeights(device::Device& device, device::MemoryLedger& ledger, comm::Communicator& communicator,
                  parallel::ParameterStore& store, bool overlap);

  // The uses of a training step follow, or those of an evaluation, whose bytes are not counted.
  void begin(bool training);
  // Binds the unit's weights until as many after() as before().
  void before(const parallel::Unit& unit);
  void after(const parallel::Unit& unit);

 private:
  struct Place {
    const parallel::Unit* unit = nullptr;  // whose weights it holds or receives, from the gather to the last after()
    int64_t turn = 0;                      // when it was taken
    std::vector<comm::Handle> gathers;
  };
  struct Order {
    std::vector<const parallel::Unit*> units;
    size_t next = 0;
  };
  // Gathers into a free place; nothing where there is none.
  std::optional<size_t> start(const parallel::Unit& unit);
  void finish(size_t place);
  void drop_ahead();
  void bind(const parallel::Unit& unit, std::optional<size_t> place);
  // Moves on in the order of uses, or learns that it is another than thought.
  void note(const parallel::Unit& unit);

  comm::Communicator& communicator_;
  parallel::ParameterStore& store_;
  bool overlap_, training_ = true;
  UnitBuffers buffers_;
  std::vector<Place> places_;
  std::vector<int64_t> uses_;                    // of each unit that have not ended
  std::vector<std::optional<size_t>> place_of_;  // each unit's, while it is in use
  std::optional<size_t> ahead_;                  // the place of the unit expected next
  std::array<Order, 2> orders_;                  // of evaluations and of training steps
  int64_t turns_ = 0;
};

}  // namespace quintet::optimizer
