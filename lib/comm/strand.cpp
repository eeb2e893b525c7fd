#include "lib/comm/strand.h"

#include <algorithm>
#include <cstring>

#include "lib/base/error.h"
#include "lib/comm/fold.h"

namespace quintet::comm {

void Strand::copy(std::span<const std::byte> from, std::byte* to) {
  if (from.empty() || from.data() == to) return;
  if (!on_device()) {
    std::memcpy(to, from.data(), from.size());
    return;
  }
  enter_side();
  side_->copy_bytes(from.data(), to, static_cast<int64_t>(from.size()));
  past_ = {side_->fence()};
}

void Strand::fold(DType dtype, Reduction reduction, std::span<const std::byte* const> pieces, std::byte* output,
                  int64_t elements) {
  if (!on_device()) return comm::fold(dtype, reduction, pieces, output, elements);
  QUINTET_CHECK(reduction == Reduction::sum, "devices add alone");
  enter_side();
  side_->sum_pieces(dtype, pieces, output, elements);
  past_ = {side_->fence()};
}

std::shared_ptr<const device::Fence> Strand::fence() {
  if (!on_device()) return nullptr;
  if (past_.size() != 1) {
    enter_side();
    past_ = {side_->fence()};
  }
  return past_.front();
}

void Strand::join() {
  for (const auto& fence : past_) queue_->wait_for(*fence);
  past_.clear();
}

bool Strand::happened() const {
  return std::all_of(past_.begin(), past_.end(), [](const auto& fence) { return fence->happened(); });
}

void Strand::enter_side() {
  for (const auto& fence : past_) side_->wait_for(*fence);
}

}  // namespace quintet::comm
