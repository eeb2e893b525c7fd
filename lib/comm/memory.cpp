#include "lib/comm/memory.h"

#include <cstring>

#include "lib/base/error.h"
#include "lib/comm/fold.h"

namespace quintet::comm {

void Memory::copy(std::span<const std::byte> from, std::byte* to) const {
  if (from.empty() || from.data() == to) return;
  if (on_device(to)) {
    queue_->copy_bytes(from.data(), to, static_cast<int64_t>(from.size()));
  } else {
    std::memcpy(to, from.data(), from.size());
  }
}

void Memory::fold(DType dtype, Reduction reduction, std::span<const std::byte* const> pieces, std::byte* output,
                  int64_t elements) const {
  if (!on_device(output)) return comm::fold(dtype, reduction, pieces, output, elements);
  QUINTET_CHECK(reduction == Reduction::sum, "devices add alone");
  queue_->sum_pieces(dtype, pieces, output, elements);
}

}  // namespace quintet::comm
