#include "kernels/cpu/adamw.h"

#include <cmath>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/storage.h"

namespace quintet::kernels::cpu {

template <typename T, typename G, typename W>
void adamw(const AdamwArgs& args, int64_t elements, const G* gradient, T* master, T* first_moment, T* second_moment,
           W* weight) {
  const double updates = static_cast<double>(args.update);
  const T beta1 = static_cast<T>(args.beta1), beta2 = static_cast<T>(args.beta2);
  const T rest1 = static_cast<T>(1 - args.beta1), rest2 = static_cast<T>(1 - args.beta2);
  const T correction1 = static_cast<T>(1 / (1 - std::pow(args.beta1, updates)));
  const T correction2 = static_cast<T>(1 / (1 - std::pow(args.beta2, updates)));
  const T scale = static_cast<T>(args.gradient_scale), epsilon = static_cast<T>(args.epsilon);
  const T rate = static_cast<T>(args.learning_rate), decay = static_cast<T>(args.weight_decay);
  for_elements(args.threads, elements, [=](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      const T g = static_cast<T>(widen(gradient[i])) * scale;
      const T m = beta1 * first_moment[i] + rest1 * g;
      const T v = beta2 * second_moment[i] + rest2 * g * g;
      first_moment[i] = m;
      second_moment[i] = v;
      master[i] -= rate * (m * correction1 / (std::sqrt(v * correction2) + epsilon) + decay * master[i]);
      if constexpr (!std::is_same_v<T, W>) weight[i] = round_to<W>(master[i]);
    }
  });
}

template void adamw(const AdamwArgs&, int64_t, const float*, float*, float*, float*, float*);
template void adamw(const AdamwArgs&, int64_t, const bfloat16*, float*, float*, float*, float*);
template void adamw(const AdamwArgs&, int64_t, const float*, float*, float*, float*, bfloat16*);
template void adamw(const AdamwArgs&, int64_t, const bfloat16*, float*, float*, float*, bfloat16*);
template void adamw(const AdamwArgs&, int64_t, const double*, double*, double*, double*, double*);
template void adamw(const AdamwArgs&, int64_t, const bfloat16*, double*, double*, double*, double*);

}  // namespace quintet::kernels::cpu
