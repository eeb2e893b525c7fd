#include "kernels/cpu/activation.h"

#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"

namespace quintet::kernels::cpu {
namespace {

// Beyond these the functions have reached 0 or x (slopes 0 or 1) to the last bit, and exponentials stay finite inside.
template <typename T>
inline constexpr T kGeluRange = sizeof(T) == 4 ? T{10} : T{20};
template <typename T>
inline constexpr T kSigmoidRange = sizeof(T) == 4 ? T{80} : T{700};

struct Gelu {
  // (1 + tanh(u)) / 2 = sigmoid(2 u) with u = kOuter / 2 (x + kCubic x^3).
  template <typename T>
  static constexpr T kOuter = T(1.59576912160573071);
  template <typename T>
  static constexpr T kCubic = T(0.044715);

  template <typename T>
  static T value(T x) {
    const T inner = clamp(x, -kGeluRange<T>, kGeluRange<T>);
    return x * sigmoid(kOuter<T> * (inner + kCubic<T> * inner * inner * inner));
  }
  template <typename T>
  static T slope(T x) {
    x = clamp(x, -kGeluRange<T>, kGeluRange<T>);
    const T e = exponential(-kOuter<T> * (x + kCubic<T> * x * x * x));
    const T s = T{1} / (T{1} + e);
    return s + x * s * (s * e) * kOuter<T> * (T{1} + T{3} * kCubic<T> * x * x);
  }
};

struct GeluExact {
  template <typename T>
  static T value(T x) {
    return x * normal_distribution(x);
  }
  template <typename T>
  static T slope(T x) {
    x = clamp(x, -T{2} * kGeluRange<T>, T{2} * kGeluRange<T>);
    constexpr T kDensityAtZero = T(0.398942280401432678);
    return normal_distribution(x) + x * kDensityAtZero * exponential(T(-0.5) * x * x);
  }
};

struct ReluSquared {
  template <typename T>
  static T value(T x) {
    return x < T{0} ? T{0} : x * x;
  }
  template <typename T>
  static T slope(T x) {
    return x < T{0} ? T{0} : T{2} * x;
  }
};

// function(F{}) with F the functions of `kind`.
template <typename Function>
void visit(ActivationKind kind, Function&& function) {
  switch (kind) {
    case ActivationKind::gelu: return function(Gelu{});
    case ActivationKind::gelu_exact: return function(GeluExact{});
    case ActivationKind::relu_squared: return function(ReluSquared{});
  }
}

}  // namespace

template <typename T>
void bias_activation_forward(int threads, ActivationKind kind, int64_t rows, int64_t width, const T* bias,
                             T* pre_activation, T* output) {
  visit(kind, [&]<typename F>(F) {
    for_rows(threads, rows, width, [=](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        T* x = pre_activation + t * width;
        T* y = output + t * width;
        if (bias != nullptr) {
#pragma omp simd
          for (int64_t c = 0; c < width; ++c) {
            x[c] = round_to<T>(widen(x[c]) + widen(bias[c]));
            y[c] = round_to<T>(F::value(widen(x[c])));
          }
        } else {
#pragma omp simd
          for (int64_t c = 0; c < width; ++c) y[c] = round_to<T>(F::value(widen(x[c])));
        }
      }
    });
  });
}

template <typename T>
void add_bias(int threads, int64_t rows, int64_t width, const T* bias, T* values) {
  for_rows(threads, rows, width, [=](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      T* row = values + t * width;
#pragma omp simd
      for (int64_t c = 0; c < width; ++c) row[c] = round_to<T>(widen(row[c]) + widen(bias[c]));
    }
  });
}

template <typename T>
void activation_backward(int threads, ActivationKind kind, int64_t elements, const T* pre_activation,
                         const Arithmetic<T>* d_output, T* d_input) {
  visit(kind, [&]<typename F>(F) {
    for_elements(threads, elements, [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) d_input[i] = round_to<T>(d_output[i] * F::slope(widen(pre_activation[i])));
    });
  });
}

template <typename T>
void swiglu_forward(int threads, int64_t elements, const T* gate, const T* up, T* output) {
  using A = Arithmetic<T>;
  for_elements(threads, elements, [=](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      const A x = widen(gate[i]);
      output[i] = round_to<T>(x * sigmoid(clamp(x, -kSigmoidRange<A>, kSigmoidRange<A>)) * widen(up[i]));
    }
  });
}

template <typename T>
void swiglu_backward(int threads, int64_t elements, const T* gate, const T* up, const T* d_output, T* d_gate, T* d_up) {
  using A = Arithmetic<T>;
  for_elements(threads, elements, [=](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      const A x = widen(gate[i]), u = widen(up[i]), d = widen(d_output[i]);
      const A inside = clamp(x, -kSigmoidRange<A>, kSigmoidRange<A>);
      const A e = exponential(-inside);
      const A s = A{1} / (A{1} + e);
      d_up[i] = round_to<T>(d * x * s);
      d_gate[i] = round_to<T>(d * u * s * (A{1} + inside * (s * e)));
    }
  });
}

#define QUINTET_INSTANTIATE(T)                                                                         \
  template void bias_activation_forward(int, ActivationKind, int64_t, int64_t, const T*, T*, T*);      \
  template void add_bias(int, int64_t, int64_t, const T*, T*);                                         \
  template void activation_backward(int, ActivationKind, int64_t, const T*, const Arithmetic<T>*, T*); \
  template void swiglu_forward(int, int64_t, const T*, const T*, T*);                                  \
  template void swiglu_backward(int, int64_t, const T*, const T*, const T*, T*, T*);
QUINTET_INSTANTIATE(bfloat16)
QUINTET_INSTANTIATE(float)
QUINTET_INSTANTIATE(double)
#undef QUINTET_INSTANTIATE

}  // namespace quintet::kernels::cpu
