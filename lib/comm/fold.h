// The arithmetic of reductions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lib/base/dtype.h"
#include "lib/comm/process_group.h"

namespace quintet::comm {

// output[i] = ((pieces[0][i] + pieces[1][i]) + pieces[2][i]) + ...: a left fold in the given order, in the element type
// (bf16: in fp32, rounded once at the end; integers wrap around). max keeps NaN. output may be one of the pieces.
void fold(DType dtype, Reduction reduction, std::span<const std::byte* const> pieces, std::byte* output,
          int64_t elements);

}  // namespace quintet::comm
