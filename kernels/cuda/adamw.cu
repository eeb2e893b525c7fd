// One launch updates up to kMaxSpans spans; a block takes 1024 elements of one. Moves 28 bytes an element (30 with a
// bf16 weight): the floor is that many over the copy bandwidth. Products and sums are rounded one by one, so that
// neither the width of an access nor the compiler decides a bit. Twin: kernels/cpu/adamw.cpp, bit for bit.
#include "kernels/cuda/adamw.h"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/elements.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tiles.h"

namespace quintet::kernels::cuda {
namespace {

constexpr int kMaxSpans = 48;  // a kernel's arguments end at 4 KiB
constexpr int kPerThread = 4;
constexpr int64_t kPerBlock = kPerThread * int64_t{kTileThreads};

struct Factors {
  float beta1, rest1, beta2, rest2, correction1, correction2, scale, epsilon, rate, decay;
};

template <typename G>
struct Spans {
  int count = 0;
  int64_t first_block[kMaxSpans + 1] = {};
  AdamwSpan<G> at[kMaxSpans];
};
static_assert(sizeof(Spans<float>) + sizeof(Factors) <= 4096);

__device__ __forceinline__ void update(const Factors& f, bool decay, float gradient, float& w, float& m, float& v) {
  const float g = __fmul_rn(gradient, f.scale);
  m = __fadd_rn(__fmul_rn(f.beta1, m), __fmul_rn(f.rest1, g));
  v = __fadd_rn(__fmul_rn(f.beta2, v), __fmul_rn(__fmul_rn(f.rest2, g), g));
  const float root = __fadd_rn(__fsqrt_rn(__fmul_rn(v, f.correction2)), f.epsilon);
  const float step = __fdiv_rn(__fmul_rn(m, f.correction1), root);
  w = __fadd_rn(w, -__fmul_rn(f.rate, __fadd_rn(step, __fmul_rn(decay ? f.decay : 0.0F, w))));
}

template <typename G>
__global__ void __launch_bounds__(kTileThreads) adamw_kernel(const __grid_constant__ Spans<G> spans, Factors factors) {
  int s = 0;
  while (spans.first_block[s + 1] <= blockIdx.x) ++s;
  const AdamwSpan<G>& span = spans.at[s];
  const int64_t first = (blockIdx.x - spans.first_block[s]) * kPerBlock;
  const auto aligned = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; };
  // Master weights and moments go 16 bytes at a time; gradients and rounded weights of bf16 element by element.
  if (aligned(span.weight) && aligned(span.first_moment) && aligned(span.second_moment) &&
      first + kPerBlock <= span.elements) {
    const int64_t i = first + threadIdx.x * kPerThread;
    float w[kPerThread], m[kPerThread], v[kPerThread];
    load(span.weight + i, w);
    load(span.first_moment + i, m);
    load(span.second_moment + i, v);
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
      update(factors, span.decay, to_float(span.gradient[i + k]), w[k], m[k], v[k]);
      if (span.rounded_weight != nullptr) span.rounded_weight[i + k] = from_float<bfloat16>(w[k]);
    }
    store(w, span.weight + i);
    store(m, span.first_moment + i);
    store(v, span.second_moment + i);
    return;
  }
  for (int64_t i = first + threadIdx.x; i < min(span.elements, first + kPerBlock); i += kTileThreads) {
    float w = span.weight[i], m = span.first_moment[i], v = span.second_moment[i];
    update(factors, span.decay, to_float(span.gradient[i]), w, m, v);
    span.weight[i] = w;
    span.first_moment[i] = m;
    span.second_moment[i] = v;
    if (span.rounded_weight != nullptr) span.rounded_weight[i] = from_float<bfloat16>(w);
  }
}

Factors factors_of(const AdamwArgs& args) {
  const double updates = static_cast<double>(args.update);
  const auto rounded_once = [](double value) { return static_cast<float>(value); };
  return {rounded_once(args.beta1),
          rounded_once(1 - args.beta1),
          rounded_once(args.beta2),
          rounded_once(1 - args.beta2),
          rounded_once(1 / (1 - std::pow(args.beta1, updates))),
          rounded_once(1 / (1 - std::pow(args.beta2, updates))),
          rounded_once(args.gradient_scale),
          rounded_once(args.epsilon),
          rounded_once(args.learning_rate),
          rounded_once(args.weight_decay)};
}

}  // namespace

template <typename G>
void adamw(const AdamwArgs& args, std::span<const AdamwSpan<G>> spans, cudaStream_t stream) {
  const Factors factors = factors_of(args);
  for (size_t begin = 0; begin < spans.size(); begin += kMaxSpans) {
    Spans<G> some;
    for (const AdamwSpan<G>& span : spans.subspan(begin, std::min<size_t>(kMaxSpans, spans.size() - begin))) {
      some.at[some.count] = span;
      some.first_block[some.count + 1] = some.first_block[some.count] + ceil_div(span.elements, kPerBlock);
      ++some.count;
    }
    launch(adamw_kernel<G>, some.first_block[some.count], kTileThreads, 0, stream, some, factors);
  }
}

template void adamw(const AdamwArgs&, std::span<const AdamwSpan<float>>, cudaStream_t);
template void adamw(const AdamwArgs&, std::span<const AdamwSpan<bfloat16>>, cudaStream_t);

}  // namespace quintet::kernels::cuda
