// Packets of 16 bytes a thread. Floors: fill 1, cast 2, transpose_rows 2, scale 2, squared_norm and check_finite 1
// element each over the copy bandwidth. Squares of fp32 are exact in fp64; a run's sum is taken in an order of its own.
// Twins: kernels/cpu/elementwise.cpp.
#include "kernels/cuda/elementwise.h"

#include "kernels/cuda/elements.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/tiles.h"

namespace quintet::kernels::cuda {
namespace {

template <typename T>
__global__ void __launch_bounds__(kTileThreads) fill_kernel(int64_t elements, T value, T* to) {
  const int64_t i = first_element<1>();
  if (i < elements) to[i] = value;
}

// kPacket<bfloat16> elements: two packets of floats, one of bf16.
template <typename From, typename To, bool packets>
__global__ void __launch_bounds__(kTileThreads) cast_kernel(int64_t elements, const From* from, To* to) {
  constexpr int kWide = kPacket<bfloat16>, kHalf = kPacket<float>;
  if constexpr (!packets) {
    const int64_t i = first_element<1>();
    if (i < elements) to[i] = from_float<To>(to_float(from[i]));
  } else {
    const int64_t i = first_element<kWide>();
    if (i >= elements) return;
    float all[kWide], part[kHalf];
    if constexpr (sizeof(From) == 2) {
      load(from + i, all);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int k = 0; k < kHalf; ++k) part[k] = all[half * kHalf + k];
        store(part, to + i + half * kHalf);
      }
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        load(from + i + half * kHalf, part);
#pragma unroll
        for (int k = 0; k < kHalf; ++k) all[half * kHalf + k] = part[k];
      }
      store(all, to + i);
    }
  }
}

// Runs of `width` pieces.
template <typename Piece>
__global__ void __launch_bounds__(kTileThreads)
    transpose_rows_kernel(unsigned per_row, int64_t outer, int64_t inner, int64_t width, const Piece* from, Piece* to) {
  const auto [row, column] = place_in_rows<1>(per_row);
  if (column >= width) return;
  to[row * width + column] = from[(row % outer * inner + row / outer) * width + column];
}

template <typename T, int N>
__global__ void __launch_bounds__(kTileThreads) scale_kernel(int64_t elements, float factor, T* values) {
  const int64_t i = first_element<N>();
  if (i >= elements) return;
  float x[N];
  load(values + i, x);
#pragma unroll
  for (int k = 0; k < N; ++k) x[k] *= factor;
  store(x, values + i);
}

template <typename T, int N>
__global__ void __launch_bounds__(kTileThreads) squares_kernel(int64_t elements, const T* values, double* partial) {
  __shared__ double scratch[32];
  const int64_t begin = blockIdx.x * kSquaresPerPartial, end = min(elements, begin + kSquaresPerPartial);
  double sum = 0;
  for (int64_t i = begin + int64_t{threadIdx.x} * N; i < end; i += int64_t{kTileThreads} * N) {
    float x[N];
    load(values + i, x);
#pragma unroll
    for (int k = 0; k < N; ++k) sum += static_cast<double>(x[k]) * static_cast<double>(x[k]);
  }
  sum = reduce_block<Sum>(sum, scratch);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

template <typename T, int N>
__global__ void __launch_bounds__(kTileThreads) finite_kernel(int64_t elements, const T* values, int32_t* finite) {
  const int64_t i = first_element<N>();
  if (i >= elements) return;
  float x[N], sum = 0.0F;
  load(values + i, x);
  // x - x is 0 for finite x and NaN otherwise; a NaN stays in the sum.
#pragma unroll
  for (int k = 0; k < N; ++k) sum += x[k] - x[k];
  if (sum != 0.0F) atomicExch(finite, 0);
}

}  // namespace

template <typename T>
void fill(int64_t elements, T value, T* to, cudaStream_t stream) {
  launch(fill_kernel<T>, tiles(elements, 1), kTileThreads, 0, stream, elements, value, to);
}

template <typename From, typename To>
void cast(int64_t elements, const From* from, To* to, cudaStream_t stream) {
  constexpr int kWide = kPacket<bfloat16>;
  const bool packets = elements % kWide == 0 && in_packets(elements, from, reinterpret_cast<const From*>(to));
  launch(packets ? cast_kernel<From, To, true> : cast_kernel<From, To, false>, tiles(elements, packets ? kWide : 1),
         kTileThreads, 0, stream, elements, from, to);
}

void transpose_rows(int64_t outer, int64_t inner, int64_t bytes, const void* from, void* to, cudaStream_t stream) {
  const auto run = [&]<typename Piece>(Piece) {
    const int64_t width = bytes / int64_t{sizeof(Piece)};
    const RowTiles tiles(width, 1);
    launch(transpose_rows_kernel<Piece>, tiles.blocks(outer * inner), tiles.threads, 0, stream, tiles.per_row, outer,
           inner, width, static_cast<const Piece*>(from), static_cast<Piece*>(to));
  };
  const uint64_t bits =
      static_cast<uint64_t>(bytes) | reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to);
  if (bits % sizeof(uint4) == 0) {
    run(uint4{});
  } else if (bits % sizeof(uint32_t) == 0) {
    run(uint32_t{});
  } else if (bits % sizeof(uint16_t) == 0) {
    run(uint16_t{});
  } else {
    run(uint8_t{});
  }
}

template <typename T>
void scale(int64_t elements, float factor, T* values, cudaStream_t stream) {
  const bool packets = in_packets(elements, values);
  launch(packets ? scale_kernel<T, kPacket<T>> : scale_kernel<T, 1>, tiles(elements, packets ? kPacket<T> : 1),
         kTileThreads, 0, stream, elements, factor, values);
}

template <typename T>
void squared_norm(int64_t elements, const T* values, double* partial, cudaStream_t stream) {
  const bool packets = in_packets(elements, values);
  launch(packets ? squares_kernel<T, kPacket<T>> : squares_kernel<T, 1>, ceil_div(elements, kSquaresPerPartial),
         kTileThreads, 0, stream, elements, values, partial);
}

template <typename T>
void check_finite(int64_t elements, const T* values, int32_t* finite, cudaStream_t stream) {
  const bool packets = in_packets(elements, values);
  launch(packets ? finite_kernel<T, kPacket<T>> : finite_kernel<T, 1>, tiles(elements, packets ? kPacket<T> : 1),
         kTileThreads, 0, stream, elements, values, finite);
}

template void fill(int64_t, float, float*, cudaStream_t);
template void fill(int64_t, bfloat16, bfloat16*, cudaStream_t);
template void fill(int64_t, int32_t, int32_t*, cudaStream_t);
template void fill(int64_t, int64_t, int64_t*, cudaStream_t);
template void fill(int64_t, uint8_t, uint8_t*, cudaStream_t);
template void cast(int64_t, const float*, bfloat16*, cudaStream_t);
template void cast(int64_t, const bfloat16*, float*, cudaStream_t);
#define QUINTET_INSTANTIATE(T)                                          \
  template void scale(int64_t, float, T*, cudaStream_t);                \
  template void squared_norm(int64_t, const T*, double*, cudaStream_t); \
  template void check_finite(int64_t, const T*, int32_t*, cudaStream_t);
QUINTET_INSTANTIATE(float)
QUINTET_INSTANTIATE(bfloat16)
#undef QUINTET_INSTANTIATE

}  // namespace quintet::kernels::cuda
