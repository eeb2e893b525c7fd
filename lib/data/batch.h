// What one data rank reads for one microbatch: a pure function of the place, so that a batch never depends on the mesh
// beyond who holds which part of it.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "lib/data/dataset.h"

namespace quintet::data {

// Positions [begin, begin + length) of a sequence.
struct Chunk {
  int64_t begin = 0, length = 0;
  int64_t end() const { return begin + length; }
  bool operator==(const Chunk&) const = default;
};

// Microbatch j of data rank r of D holds ordinals base + (j*D + r)*b ... + b-1.
struct BatchPlace {
  int64_t base = 0;        // ordinals before the step: (step - 1) * G where the global batch size G never changed
  int64_t microbatch = 0;  // j
  int64_t data_rank = 0;   // r
  int64_t data_ranks = 1;  // D
  int64_t size = 1;        // b
  // Samples from here on are padding whose targets do not count: where D*b does not divide what evaluation reads.
  int64_t limit = std::numeric_limits<int64_t>::max();
  // What this rank holds of every sequence; empty: all of it.
  std::vector<Chunk> chunks = {};

  int64_t first_ordinal() const { return base + (microbatch * data_ranks + data_rank) * size; }
};

// Microbatches that each data rank runs so that `samples` samples are read, the last one maybe padded.
int64_t microbatches_for(int64_t samples, int64_t data_ranks, int64_t size);

constexpr int32_t kNotCounted = -1;

// Host memory. The rows stand chunk by chunk: the first chunk of all b sequences, then the second; without chunks they
// are [b, S].
struct Batch {
  int64_t size = 0;             // b
  int64_t sequence_length = 0;  // S
  std::vector<int32_t> tokens;
  std::vector<int32_t> targets;    // kNotCounted where the loss leaves a prediction out
  std::vector<int32_t> positions;  // within the sequence, or within the document where documents are masked
  std::vector<int64_t> rows;       // ordinal*S + position: the identity of a row for dropout
  // Where documents are masked: the position at which the row's document starts, 0 where it began before the sequence;
  // and the same of all positions, [b, S].
  std::vector<int32_t> document_starts, all_document_starts;
  int64_t counted = 0;  // targets that count
};

// Fills `batch`, whose memory is reused from call to call.
void fill_batch(Dataset& dataset, const BatchPlace& place, Batch& batch);

}  // namespace quintet::data
