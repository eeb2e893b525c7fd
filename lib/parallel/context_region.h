// Who holds which part of each sequence along cp. A rank's rows stand chunk by chunk: its first chunk of all B
// sequences of a microbatch, [B, L], then its second; nothing but attention cares.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/comm/communicator.h"
#include "lib/config/config.h"
#include "lib/data/batch.h"
#include "lib/device/device.h"

namespace quintet::parallel {

// The chunks of a rank, ascending and all of one length, which must divide. Under zigzag a sequence has 2 * ranks
// chunks and rank i holds i and 2 * ranks - 1 - i, so that causal attention keeps all ranks equally busy (Brandon et
// al. 2023, Striped Attention, name the problem; Llama 3, 2024, section 3.3.2 has this remedy). Otherwise rank i holds
// the i-th of `ranks` parts.
std::vector<data::Chunk> context_chunks(config::ContextBalance balance, int64_t ranks, int64_t rank,
                                        int64_t sequence_length);

// Whether some query of one chunk sees some key of another.
inline bool sees(const data::Chunk& queries, const data::Chunk& keys) { return keys.begin < queries.end(); }

class ContextRegion {
 public:
  ContextRegion(comm::Communicator& communicator, const config::Context& config, int64_t sequence_length);

  int64_t ranks() const { return group_.size(); }
  int64_t rank() const { return group_.rank(); }
  comm::ProcessGroup& group() const { return group_; }
  const config::Context& config() const { return config_; }
  // Moves this rank's operations on without waiting; called within long computations.
  void progress() const { communicator_.progress(); }
  int64_t sequence_length() const { return sequence_length_; }
  // Positions of each sequence on a rank.
  int64_t local_positions() const { return sequence_length_ / ranks(); }

  const std::vector<data::Chunk>& chunks() const { return chunks_of(rank()); }
  const std::vector<data::Chunk>& chunks_of(int64_t rank) const { return chunks_[static_cast<size_t>(rank)]; }

  // Whether attention works on whole sequences.
  bool sees_whole_sequences() const { return ranks() > 1 && config_.method == config::ContextMethod::ulysses; }

  // Between the rows of all ranks in their order, [ranks * T, width], and whole sequences, [B * S, width].
  void to_sequences(device::Device& device, Tensor by_rank, Tensor sequences) const;
  void from_sequences(device::Device& device, Tensor sequences, Tensor by_rank) const;

 private:
  // visit(row by rank, row by sequence, rows) of each piece of a chunk.
  template <typename Visit>
  void for_each_piece(int64_t rows, const Visit& visit) const;

  comm::Communicator& communicator_;
  comm::ProcessGroup& group_;
  config::Context config_;
  int64_t sequence_length_;
  std::vector<std::vector<data::Chunk>> chunks_;  // by rank
};

}  // namespace quintet::parallel
