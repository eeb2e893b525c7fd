// Gradients against differences of the objective, in fp64.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>

namespace quintet::testing {

// The largest difference between `gradient` and central differences of objective() over the elements of `values`, which
// are changed and put back; relative to the largest gradient. About 1e-9 for a right gradient of a smooth function.
template <typename Objective>
double gradient_error(std::span<double> values, std::span<const double> gradient, const Objective& objective,
                      double step = 1e-4) {
  double worst = 0, largest = 1e-3;
  for (size_t i = 0; i < values.size(); ++i) {
    const double value = values[i];
    // Five points: the error falls with step^4.
    const auto at = [&](double offset) {
      values[i] = value + offset;
      return objective();
    };
    const double numeric = (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step);
    values[i] = value;
    largest = std::max(largest, std::abs(numeric));
    const double error = std::abs(numeric - gradient[i]);
    if (!(error <= worst)) worst = error;
  }
  return worst / largest;
}

}  // namespace quintet::testing
