#include "lib/comm/memory.h"

namespace quintet::comm {

void Memory::use(device::WorkQueue* queue) {
  sides_.clear();
  queue_ = queue;
}

std::shared_ptr<Strand> Memory::strand(const void* operand, uint8_t lane, std::optional<int64_t> peer) {
  if (!on_device(operand)) return host_;
  std::unique_ptr<device::SideQueue>& side = sides_[{lane, peer}];
  if (!side) side = queue_->branch();
  return std::make_shared<Strand>(*queue_, *side);
}

}  // namespace quintet::comm
