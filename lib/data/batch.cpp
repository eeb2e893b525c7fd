#include "lib/data/batch.h"

#include <algorithm>
#include <numeric>

#include "lib/base/error.h"
#include "lib/base/integers.h"

namespace quintet::data {

int64_t microbatches_for(int64_t samples, int64_t data_ranks, int64_t size) {
  return ceil_div(samples, data_ranks * size);
}

void fill_batch(Dataset& dataset, const BatchPlace& place, Batch& batch) {
  QUINTET_CHECK(place.base >= 0 && place.microbatch >= 0 && place.size >= 1, "base {}, microbatch {}, size {}",
                place.base, place.microbatch, place.size);
  QUINTET_CHECK(place.data_rank >= 0 && place.data_rank < place.data_ranks, "data rank {} of {}", place.data_rank,
                place.data_ranks);
  const int64_t S = dataset.sequence_length();
  const size_t elements = static_cast<size_t>(place.size * S);
  batch.size = place.size;
  batch.sequence_length = S;
  batch.tokens.resize(elements);
  batch.targets.resize(elements);
  batch.positions.resize(elements);
  batch.rows.resize(elements);
  batch.counted = 0;
  std::vector<int32_t> sample(static_cast<size_t>(S + 1));
  for (int64_t i = 0; i < place.size; ++i) {
    const int64_t ordinal = place.first_ordinal() + i;
    int32_t* tokens = batch.tokens.data() + i * S;
    int32_t* targets = batch.targets.data() + i * S;
    std::iota(batch.positions.data() + i * S, batch.positions.data() + (i + 1) * S, 0);
    std::iota(batch.rows.data() + i * S, batch.rows.data() + (i + 1) * S, ordinal * S);
    if (ordinal >= place.limit) {
      std::fill_n(tokens, S, 0);
      std::fill_n(targets, S, kNotCounted);
      continue;
    }
    dataset.sample(ordinal, sample);
    std::copy_n(sample.data(), S, tokens);
    std::copy_n(sample.data() + 1, S, targets);
    batch.counted += S;
  }
}

}  // namespace quintet::data
