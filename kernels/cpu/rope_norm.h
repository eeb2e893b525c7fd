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

// input and inverse_rms are read only where there is a scale. d_input may be d_output.
template <typename T>
void rope_norm_backward_input(const RopeNormArgs<T>& args, const T* input, const Arithmetic<T>* inverse_rms,
                              const T* d_output, T* d_input);
// scale_gradient [width] is added to, independent of threads; args.scale is not read.
template <typename T, typename G>
void rope_norm_backward_scale(const RopeNormArgs<T>& args, const T* input, const Arithmetic<T>* inverse_rms,
                              const T* d_output, G* scale_gradient);

}  // namespace quintet::kernels::cpu
