// Products by oneDNN.
#pragma once

#include "kernels/cpu/matmul.h"

namespace quintet::kernels::cpu {

// Whether oneDNN, where it is built in and has quick code for these types on this processor, has done it. Sizes are
// positive; the fp32 product leaves the bias out.
// No signal handler may run on this thread meanwhile, unless on a stack of its own: see lib/training/signals.h.
template <typename T, typename C>
bool multiply_by_dnnl(const MatmulArgs<T, C>& /*args*/) {
  return false;
}
#ifdef QUINTET_HAS_DNNL
template <>
bool multiply_by_dnnl(const MatmulArgs<float>& args);
template <>
bool multiply_by_dnnl(const MatmulArgs<bfloat16>& args);
template <>
bool multiply_by_dnnl(const MatmulArgs<bfloat16, float>& args);
#endif

}  // namespace quintet::kernels::cpu
