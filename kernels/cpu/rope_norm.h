// What happens to queries and keys before attention: an RMS norm per head with one scale for all heads (Qwen3), then
// rotary position embedding (Su et al. 2021) in the half-split form: channel i turns with channel i + D/2.
#pragma once

#include <cstdint>

#include "kernels/cpu/storage.h"

namespace quintet::kernels::cpu {

// Rows are (token, head) pairs of a [tokens, heads, width] tensor.
template <typename T>
struct RopeNormArgs {
  int64_t tokens = 0, heads = 0, width = 0;
  const T* scale = nullptr;  // [width]; null: no norm
  double epsilon = 0;
  const Arithmetic<T>* cosine = nullptr;  // [table_rows, width / 2], as is sine; null: no rotation
  const Arithmetic<T>* sine = nullptr;
  int64_t table_rows = 0;
  const int32_t* positions = nullptr;  // [tokens]
  int threads = 1;
};

// inverse_rms [tokens, heads] is written where there is a scale. output may be input.
template <typename T>
void rope_norm_forward(const RopeNormArgs<T>& args, const T* input, Arithmetic<T>* inverse_rms, T* output);

// gradient, of the output, becomes that of the input in place; scale_gradient [width] is added to, independent of
// threads. input, inverse_rms and scale_gradient are read only where there is a scale.
template <typename T, typename G>
void rope_norm_backward(const RopeNormArgs<T>& args, const T* input, const Arithmetic<T>* inverse_rms, T* gradient,
                        G* scale_gradient);

}  // namespace quintet::kernels::cpu
