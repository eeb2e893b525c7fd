// Exponential and relatives as branch-free inline functions, so that a loop over them becomes vector code. In fp32 they
// are within 1.5 units in the last place (exp) or an absolute 2e-7 (the others); in fp64 they call the library.
// NaN stays NaN. Loops that use them are marked `#pragma omp simd`.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace quintet::kernels::cpu {

// a * b + c, rounded once where the processor can.
template <typename T>
inline T fused(T a, T b, T c) {
#ifdef __FMA__
  return std::fma(a, b, c);
#else
  return a * b + c;
#endif
}

template <typename T>
inline T clamp(T x, T low, T high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}

// 0 below -104, infinity above 88.8, subnormal results included.
inline float exponential(float x) {
  x = clamp(x, -104.0F, 89.0F);
  // n = round(x / ln 2) sits in the low bits of a float between 2^23 and 2^24; r = x - n ln 2 in two pieces.
  constexpr float kMagic = 12582912.0F;
  const float shifted = fused(x, 1.44269504F, kMagic);
  const float n = shifted - kMagic;
  const float r = fused(n, -1.42860677e-6F, fused(n, -0.693145752F, x));
  float p = fused(r, 1.98412698e-4F, 1.38888889e-3F);
  p = fused(p, r, 8.33333333e-3F);
  p = fused(p, r, 4.16666667e-2F);
  p = fused(p, r, 1.66666667e-1F);
  p = fused(p, r, 0.5F);
  p = fused(p * r, r, r) + 1.0F;
  // 2^n as two factors, each of which is a normal number.
  const int32_t exponent = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kMagic);
  const int32_t half = exponent >> 1;
  const float first = std::bit_cast<float>((half + 127) << 23);
  const float second = std::bit_cast<float>((exponent - half + 127) << 23);
  return p * first * second;
}
inline double exponential(double x) { return std::exp(x); }

// 1 / (1 + exp(-x)), with its full relative precision down to the smallest normal numbers.
template <typename T>
inline T sigmoid(T x) {
  return T{1} / (T{1} + exponential(-x));
}

// exp(y^2) erfc(y) for y >= 0 is P(s) / (y + 2) with s = (y - 2) / (y + 2): a least-squares fit in Chebyshev nodes,
// relative error 1.2e-8 before rounding. Here with the exponential put back.
inline float complementary_error_function_of_positive(float y) {
  const float inverse = 1.0F / (y + 2.0F);
  const float s = (y - 2.0F) * inverse;
  float p = 8.436330898e-05F;
  p = fused(p, s, 7.326712841e-05F);
  p = fused(p, s, -5.988806621e-04F);
  p = fused(p, s, -8.614823575e-04F);
  p = fused(p, s, 3.058429829e-03F);
  p = fused(p, s, 6.487008704e-03F);
  p = fused(p, s, -2.150330066e-02F);
  p = fused(p, s, -3.644336756e-02F);
  p = fused(p, s, 2.794714743e-01F);
  p = fused(p, s, -6.871606353e-01F);
  p = fused(p, s, 1.021582714e+00F);
  return p * inverse * exponential(-y * y);
}

// The standard normal distribution function, (1 + erf(x / sqrt 2)) / 2.
inline float normal_distribution(float x) {
  const float half = 0.5F * complementary_error_function_of_positive(clamp(std::abs(x) * 0.707106781F, 0.0F, 15.0F));
  return x > 0.0F ? 1.0F - half : half;
}
inline double normal_distribution(double x) { return 0.5 * std::erfc(-x * 0.70710678118654752440); }

}  // namespace quintet::kernels::cpu
