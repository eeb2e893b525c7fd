// The one way to spread a loop over the threads of a rank.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "lib/base/integers.h"

namespace quintet {

namespace detail {
// Calls body(context, part) for each part in [0, parts), each on a thread of its own where the runtime has one free.
// Rethrows the exception of the lowest part that threw.
void run_parts(int parts, void (*body)(void*, int), void* context);
}  // namespace detail

// Calls f(begin, end) on contiguous ranges that cover [0, count): at most `threads` of them, each but the last a
// multiple of `grain` long. The split depends on the arguments alone, so that results may depend on it and still be
// reproducible. On one thread f runs in place and no thread runtime is entered.
template <typename Function>
void parallel_for(int threads, int64_t count, int64_t grain, Function&& f) {
  if (count <= 0) return;
  const int64_t blocks = ceil_div(count, grain);
  const int parts = static_cast<int>(std::min<int64_t>(threads, blocks));
  if (parts <= 1) {
    f(int64_t{0}, count);
    return;
  }
  auto part = [&](int index) {
    const int64_t begin = blocks * index / parts * grain;
    f(begin, std::min(count, blocks * (index + 1) / parts * grain));
  };
  detail::run_parts(
      parts, [](void* context, int index) { (*static_cast<decltype(part)*>(context))(index); }, &part);
}

}  // namespace quintet
