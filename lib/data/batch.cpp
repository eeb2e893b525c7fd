#include "lib/data/batch.h"

#include <algorithm>

#include "lib/base/error.h"
#include "lib/base/integers.h"

namespace quintet::data {
namespace {

int64_t rows_of(const std::vector<Chunk>& chunks, int64_t S) {
  int64_t rows = 0;
  for (const Chunk& chunk : chunks) {
    QUINTET_CHECK(chunk.begin >= 0 && chunk.length >= 1 && chunk.end() <= S, "positions [{}, {}) of {}", chunk.begin,
                  chunk.end(), S);
    rows += chunk.length;
  }
  return rows;
}

void prepare(const BatchPlace& place, int64_t S, int64_t rows, bool masks_documents, Batch& batch) {
  const auto elements = static_cast<size_t>(rows);
  batch.size = place.size;
  batch.sequence_length = S;
  batch.tokens.resize(elements);
  batch.targets.resize(elements);
  batch.positions.resize(elements);
  batch.rows.resize(elements);
  batch.document_starts.resize(masks_documents ? elements : 0);
  batch.all_document_starts.resize(masks_documents ? static_cast<size_t>(place.size * S) : 0);
  batch.counted = 0;
}

// One sample with all that a batch says of its positions.
struct Sequence {
  int64_t S;
  int64_t ordinal = 0;
  std::vector<int32_t> tokens;   // S + 1
  std::vector<int32_t> targets;  // kNotCounted where left out
  std::vector<int32_t> starts;   // of the document of each position; 0 where documents are not masked

  explicit Sequence(int64_t length)
      : S(length),
        tokens(static_cast<size_t>(length + 1)),
        targets(static_cast<size_t>(length)),
        starts(static_cast<size_t>(length)) {}

  void read(Dataset& dataset, int64_t n, int64_t limit) {
    ordinal = n;
    std::fill(starts.begin(), starts.end(), 0);
    if (ordinal >= limit) {
      std::fill(tokens.begin(), tokens.end(), 0);
      std::fill(targets.begin(), targets.end(), kNotCounted);
      return;
    }
    const Documents& documents = dataset.documents();
    std::vector<int64_t> places;
    dataset.sample(ordinal, tokens, documents.mask_attention ? &places : nullptr);
    for (const int64_t start : places) std::fill(starts.begin() + start, starts.end(), static_cast<int32_t>(start));
    for (size_t p = 0; p < targets.size(); ++p)
      targets[p] = documents.mask_end && tokens[p] == documents.end_token ? kNotCounted : tokens[p + 1];
  }

  // The chunk's rows, from `row` on.
  void write(const Chunk& chunk, int64_t row, Batch& batch) const {
    for (int64_t p = chunk.begin; p < chunk.end(); ++p, ++row) {
      const auto from = static_cast<size_t>(p), to = static_cast<size_t>(row);
      batch.tokens[to] = tokens[from];
      batch.targets[to] = targets[from];
      batch.positions[to] = static_cast<int32_t>(p) - starts[from];
      batch.rows[to] = ordinal * S + p;
      if (!batch.document_starts.empty()) batch.document_starts[to] = starts[from];
      if (targets[from] != kNotCounted) ++batch.counted;
    }
  }
};

}  // namespace

int64_t microbatches_for(int64_t samples, int64_t data_ranks, int64_t size) {
  return ceil_div(samples, data_ranks * size);
}

void fill_batch(Dataset& dataset, const BatchPlace& place, Batch& batch) {
  QUINTET_CHECK(place.base >= 0 && place.microbatch >= 0 && place.size >= 1, "base {}, microbatch {}, size {}",
                place.base, place.microbatch, place.size);
  QUINTET_CHECK(place.data_rank >= 0 && place.data_rank < place.data_ranks, "data rank {} of {}", place.data_rank,
                place.data_ranks);
  const int64_t S = dataset.sequence_length();
  const std::vector<Chunk> chunks = place.chunks.empty() ? std::vector<Chunk>{{0, S}} : place.chunks;
  prepare(place, S, rows_of(chunks, S) * place.size, dataset.documents().mask_attention, batch);
  Sequence sequence(S);
  for (int64_t i = 0; i < place.size; ++i) {
    sequence.read(dataset, place.first_ordinal() + i, place.limit);
    int64_t row = 0;
    for (const Chunk& chunk : chunks) {
      sequence.write(chunk, row + i * chunk.length, batch);
      row += place.size * chunk.length;
    }
    if (dataset.documents().mask_attention)
      std::copy(sequence.starts.begin(), sequence.starts.end(), batch.all_document_starts.begin() + i * S);
  }
}

}  // namespace quintet::data
