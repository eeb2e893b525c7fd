// What happens to queries and keys before attention: an RMS norm per head with one scale for all heads (Qwen3), then
// rotary position embedding (Su et al. 2021) in the half-split form: channel i turns with channel i + D/2.
// T: float, bfloat16; tables and arithmetic are fp32.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace quintet::kernels::cuda {

// Rows are (token, head) pairs of a [tokens, heads, width] tensor, width even.
template <typename T>
struct RopeNormArgs {
  int64_t tokens = 0, heads = 0, width = 0;
  const T* scale = nullptr;  // [width]; null: no norm
  double epsilon = 0;
  const float* cosine = nullptr;  // [table_rows, width / 2], as is sine; null: no rotation
  const float* sine = nullptr;
  int64_t table_rows = 0;
  const int32_t* positions = nullptr;  // [tokens], each below table_rows
};

// inverse_rms [tokens, heads] is written where there is a scale. output may be input.
template <typename T>
void rope_norm_forward(const RopeNormArgs<T>& args, const T* input, float* inverse_rms, T* output, cudaStream_t stream);

// input and inverse_rms are read only where there is a scale. d_input may be d_output.
template <typename T>
void rope_norm_backward_input(const RopeNormArgs<T>& args, const T* input, const float* inverse_rms, const T* d_output,
                              T* d_input, cudaStream_t stream);
// scale_gradient [width] is added to; args.scale is not read. `workspace`: rope_norm_workspace bytes. G: float, or
// bfloat16 with T.
int64_t rope_norm_workspace(int64_t tokens, int64_t heads, int64_t width);
template <typename T, typename G>
void rope_norm_backward_scale(const RopeNormArgs<T>& args, const T* input, const float* inverse_rms, const T* d_output,
                              G* scale_gradient, void* workspace, cudaStream_t stream);

}  // namespace quintet::kernels::cuda
