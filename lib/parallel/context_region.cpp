#include "lib/parallel/context_region.h"

#include "lib/base/integers.h"

namespace quintet::parallel {

std::vector<data::Chunk> context_chunks(config::ContextBalance balance, int64_t ranks, int64_t rank,
                                        int64_t sequence_length) {
  if (ranks == 1 || balance == config::ContextBalance::none) {
    const int64_t length = div_exact(sequence_length, ranks);
    return {{rank * length, length}};
  }
  const int64_t length = div_exact(sequence_length, 2 * ranks);
  return {{rank * length, length}, {(2 * ranks - 1 - rank) * length, length}};
}

ContextRegion::ContextRegion(comm::Communicator& communicator, const config::Context& config, int64_t sequence_length)
    : communicator_(communicator),
      group_(communicator.group({Axis::cp}, Axis::cp)),
      config_(config),
      sequence_length_(sequence_length) {
  for (int64_t rank = 0; rank < ranks(); ++rank)
    chunks_.push_back(context_chunks(config.balance, ranks(), rank, sequence_length));
}

template <typename Visit>
void ContextRegion::for_each_piece(int64_t rows, const Visit& visit) const {
  const int64_t sequences = div_exact(rows, sequence_length_);
  int64_t by_rank = 0;
  for (const std::vector<data::Chunk>& chunks : chunks_)
    for (const data::Chunk& chunk : chunks)
      for (int64_t sequence = 0; sequence < sequences; ++sequence, by_rank += chunk.length)
        visit(by_rank, sequence * sequence_length_ + chunk.begin, chunk.length);
}

void ContextRegion::to_sequences(device::Device& device, Tensor by_rank, Tensor sequences) const {
  for_each_piece(by_rank.size(0), [&](int64_t from, int64_t to, int64_t rows) {
    device.copy(by_rank.rows(from, rows), sequences.rows(to, rows));
  });
}

void ContextRegion::from_sequences(device::Device& device, Tensor sequences, Tensor by_rank) const {
  for_each_piece(by_rank.size(0), [&](int64_t to, int64_t from, int64_t rows) {
    device.copy(sequences.rows(from, rows), by_rank.rows(to, rows));
  });
}

}  // namespace quintet::parallel
