#include "lib/base/parallel.h"

#include <exception>
#include <thread>
#include <vector>

#include "lib/base/error.h"

namespace quintet::detail {

namespace {

// ThreadSanitizer does not know OpenMP's runtime, so builds for it start plain threads.
template <typename Run>
void on_threads(int parts, const Run& run) {
#ifdef _OPENMP
#pragma omp parallel for num_threads(parts) schedule(static, 1)
  for (int part = 0; part < parts; ++part) run(part);
#else
  std::vector<std::thread> helpers;
  for (int part = 1; part < parts; ++part) helpers.emplace_back(run, part);
  run(0);
  for (std::thread& helper : helpers) helper.join();
#endif
}

}  // namespace

void run_parts(int parts, void (*body)(void*, int), void* context) {
  std::vector<std::exception_ptr> failures(static_cast<size_t>(parts));
  on_threads(parts, [&](int part) {
    try {
      body(context, part);
    } catch (...) {
      failures[static_cast<size_t>(part)] = std::current_exception();
    }
  });
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace quintet::detail
