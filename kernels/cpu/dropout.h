// Inverted dropout whose mask is a function of (seed, stream, row key, channel): element (t, channel) of a [T, width]
// tensor has index i = rows[t] * width + channel and is kept when word i mod 4 of Philox block i / 4 is at or above
// probability * 2^32; kept elements are scaled by 1 / (1 - probability).
#pragma once

#include <cstdint>

namespace quintet::kernels::cpu {

struct DropoutMask {
  double probability = 0;  // in [0, 1); 0: identity, rows is not read
  uint64_t seed = 0, stream = 0;
  const int64_t* rows = nullptr;  // [T]
};

// The Philox words of indices [first, first + count).
void philox_words(uint64_t seed, uint64_t stream, uint64_t first, int64_t count, uint32_t* words);

// output[c] = residual[c] + dropped branch[c] for row t; a null residual counts as zero. output may be either operand.
template <typename T>
void add_dropout_row(const DropoutMask& mask, int64_t t, int64_t width, const T* residual, const T* branch, T* output);

// The same for all rows of [rows, width].
template <typename T>
void add_dropout(int threads, const DropoutMask& mask, int64_t rows, int64_t width, const T* residual, const T* branch,
                 T* output);

}  // namespace quintet::kernels::cpu
