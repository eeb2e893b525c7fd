// Where the elements of a shard lie in the whole tensor.
#pragma once

#include <cstdint>
#include <functional>

#include "lib/parallel/parameter.h"

namespace quintet::parallel {

// Neighbours in the shard that are neighbours in the whole tensor as well.
struct ElementRun {
  int64_t shard = 0, whole = 0;  // the first element in either
  int64_t count = 0;
};

// Calls `f` for the runs, ascending, that make up elements [begin, begin + count) of the shard at `coordinate`. Padding
// is in none of them.
void for_each_run(const ParameterSpec& spec, const Mesh& mesh, const Coordinate& coordinate, int64_t begin,
                  int64_t count, const std::function<void(const ElementRun&)>& f);
// Of the whole shard.
void for_each_run(const ParameterSpec& spec, const Mesh& mesh, const Coordinate& coordinate,
                  const std::function<void(const ElementRun&)>& f);

}  // namespace quintet::parallel
