#include "kernels/cpu/dropout.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/storage.h"

namespace quintet::kernels::cpu {
namespace {

constexpr uint32_t kBlocks = 64;  // Philox blocks made at a time

// The words of blocks [first, first + kBlocks): lib/base/random.h's philox, one vector lane a block.
void philox_blocks(uint64_t seed, uint64_t stream, uint64_t first, uint32_t* words) {
  alignas(64) std::array<uint32_t, kBlocks> c0, c1, c2, c3;
#pragma omp simd
  for (uint32_t b = 0; b < kBlocks; ++b) {
    c0[b] = static_cast<uint32_t>(first + b);
    c1[b] = static_cast<uint32_t>((first + b) >> 32);
    c2[b] = static_cast<uint32_t>(stream);
    c3[b] = static_cast<uint32_t>(stream >> 32);
  }
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
#pragma omp simd
    for (uint32_t b = 0; b < kBlocks; ++b) {
      const uint64_t product0 = uint64_t{0xD2511F53U} * c0[b];
      const uint64_t product1 = uint64_t{0xCD9E8D57U} * c2[b];
      c0[b] = static_cast<uint32_t>(product1 >> 32) ^ c1[b] ^ key0;
      c1[b] = static_cast<uint32_t>(product1);
      c2[b] = static_cast<uint32_t>(product0 >> 32) ^ c3[b] ^ key1;
      c3[b] = static_cast<uint32_t>(product0);
    }
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
#pragma omp simd
  for (uint32_t b = 0; b < kBlocks; ++b) {
    words[4 * b] = c0[b];
    words[4 * b + 1] = c1[b];
    words[4 * b + 2] = c2[b];
    words[4 * b + 3] = c3[b];
  }
}

}  // namespace

void philox_words(uint64_t seed, uint64_t stream, uint64_t first, int64_t count, uint32_t* words) {
  std::array<uint32_t, 4 * kBlocks> made;
  while (count > 0) {
    const int64_t skip = static_cast<int64_t>(first % 4);
    philox_blocks(seed, stream, first / 4, made.data());
    const int64_t usable = std::min(count, int64_t{4} * kBlocks - skip);
    std::copy_n(made.data() + skip, usable, words);
    words += usable;
    count -= usable;
    first += static_cast<uint64_t>(usable);
  }
}

template <typename T>
void add_dropout_row(const DropoutMask& mask, int64_t t, int64_t width, const T* residual, const T* branch, T* output) {
  if (mask.probability == 0) {
    if (residual == nullptr) {
      if (output != branch) std::copy_n(branch, width, output);
      return;
    }
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) output[c] = round_to<T>(widen(residual[c]) + widen(branch[c]));
    return;
  }
  // word >= p 2^32 for the integer word means word > ceil(p 2^32) - 1, which fits 32 bits for 0 < p < 1.
  const uint32_t last_dropped = static_cast<uint32_t>(static_cast<uint64_t>(std::ceil(mask.probability * 0x1p32)) - 1);
  using A = Arithmetic<T>;
  const A scale = static_cast<A>(1.0 / (1.0 - mask.probability));
  const uint64_t first = static_cast<uint64_t>(mask.rows[t]) * static_cast<uint64_t>(width);
  constexpr int64_t kTile = 1024;
  std::array<uint32_t, kTile> words;
  for (int64_t begin = 0; begin < width; begin += kTile) {
    const int64_t count = std::min(kTile, width - begin);
    philox_words(mask.seed, mask.stream, first + static_cast<uint64_t>(begin), count, words.data());
    const T* from = branch + begin;
    T* to = output + begin;
    if (residual == nullptr) {
#pragma omp simd
      for (int64_t c = 0; c < count; ++c) {
        to[c] = round_to<T>(words[c] > last_dropped ? widen(from[c]) * scale : A{0});
      }
    } else {
      const T* added = residual + begin;
#pragma omp simd
      for (int64_t c = 0; c < count; ++c) {
        to[c] = round_to<T>(widen(added[c]) + (words[c] > last_dropped ? widen(from[c]) * scale : A{0}));
      }
    }
  }
}

template <typename T>
void add_dropout(int threads, const DropoutMask& mask, int64_t rows, int64_t width, const T* residual, const T* branch,
                 T* output) {
  for_rows(threads, rows, width, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      add_dropout_row(mask, t, width, residual == nullptr ? nullptr : residual + t * width, branch + t * width,
                      output + t * width);
    }
  });
}

#define QUINTET_INSTANTIATE(T)                                                                 \
  template void add_dropout_row(const DropoutMask&, int64_t, int64_t, const T*, const T*, T*); \
  template void add_dropout(int, const DropoutMask&, int64_t, int64_t, const T*, const T*, T*);
QUINTET_INSTANTIATE(bfloat16)
QUINTET_INSTANTIATE(float)
QUINTET_INSTANTIATE(double)
#undef QUINTET_INSTANTIATE

}  // namespace quintet::kernels::cpu
