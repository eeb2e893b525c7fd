#include "lib/comm/fold.h"

#include <algorithm>
#include <type_traits>

namespace quintet::comm {
namespace {

constexpr int64_t kBlock = 2048;  // elements whose running sum stays in the first-level cache

template <typename T>
struct Accumulator {
  using type = T;
};
template <>
struct Accumulator<bfloat16> {
  using type = float;
};

template <typename A>
A combine_sum(A a, A b) {
  if constexpr (std::is_integral_v<A>) {
    using U = std::make_unsigned_t<A>;
    return static_cast<A>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
  } else {
    return a + b;
  }
}

template <typename A>
A combine_max(A a, A b) {
  return b > a || b != b ? b : a;
}

template <typename T, Reduction reduction>
void fold_typed(std::span<const std::byte* const> pieces, std::byte* output, int64_t elements) {
  using A = typename Accumulator<T>::type;
  alignas(64) A sum[kBlock];
  for (int64_t begin = 0; begin < elements; begin += kBlock) {
    const int64_t count = std::min(kBlock, elements - begin);
    const T* const first = reinterpret_cast<const T*>(pieces[0]) + begin;
    for (int64_t i = 0; i < count; ++i) sum[i] = static_cast<A>(first[i]);
    for (const std::byte* const piece : pieces.subspan(1)) {
      const T* const next = reinterpret_cast<const T*>(piece) + begin;
      for (int64_t i = 0; i < count; ++i) {
        const A value = static_cast<A>(next[i]);
        sum[i] = reduction == Reduction::sum ? combine_sum(sum[i], value) : combine_max(sum[i], value);
      }
    }
    T* const out = reinterpret_cast<T*>(output) + begin;
    for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(sum[i]);
  }
}

}  // namespace

void fold(DType dtype, Reduction reduction, std::span<const std::byte* const> pieces, std::byte* output,
          int64_t elements) {
  visit_dtype(dtype, [&]<typename T>() {
    if (reduction == Reduction::sum) {
      fold_typed<T, Reduction::sum>(pieces, output, elements);
    } else {
      fold_typed<T, Reduction::max>(pieces, output, elements);
    }
  });
}

}  // namespace quintet::comm
