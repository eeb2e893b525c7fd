#include "lib/training/memory_report.h"

#include <array>

namespace quintet::training {
namespace {

std::string label_of(const comm::Communicator& communicator, int64_t rank) {
  return communicator.mesh().world_size() == 1 ? "the rank" : communicator.mesh().label_of(rank);
}

}  // namespace

MemoryPeaks memory_peaks(const device::MemoryLedger& ledger, const device::Device& device) {
  MemoryPeaks peaks{.held = ledger.peak_held_bytes() + device.workspace_bytes(), .by_owner = ledger.peak_by_owner()};
  peaks.by_owner[device::Owner::workspace] += device.workspace_bytes();
  return peaks;
}

FullestRank fullest_rank(comm::Communicator& communicator, const MemoryPeaks& own) {
  comm::ProcessGroup& world = communicator.world();
  const auto agree = [&](int64_t& value) {
    world.all_reduce(Tensor(&value, DType::i64, {1}), comm::Reduction::max, "the fullest rank").wait();
  };
  FullestRank fullest{.rank = 0, .peaks = own};
  agree(fullest.peaks.held);
  int64_t lowest = fullest.peaks.held == own.held ? world.size() - world.rank() : 0;
  agree(lowest);
  fullest.rank = world.size() - lowest;
  std::array<int64_t, device::kOwners.size()>& bytes = fullest.peaks.by_owner.values;
  world.broadcast(Tensor(bytes.data(), DType::i64, {std::ssize(bytes)}), fullest.rank, "memory by owner").wait();
  return fullest;
}

void show_memory(Log& log, comm::Communicator& communicator, const MemoryPeaks& own, const std::string& when) {
  const FullestRank fullest = fullest_rank(communicator, own);
  log.info("memory    {}: {} on {}: {}", when, device::mebibytes(fullest.peaks.held),
           label_of(communicator, fullest.rank), device::describe(fullest.peaks.by_owner));
}

void show_memory_table(Log& log, comm::Communicator& communicator, const MemoryPeaks& own) {
  const FullestRank fullest = fullest_rank(communicator, own);
  device::BytesByOwner most = own.by_owner;
  communicator.world()
      .all_reduce(Tensor(most.values.data(), DType::i64, {std::ssize(most.values)}), comm::Reduction::max,
                  "memory by owner")
      .wait();
  log.info("memory    peak by owner: on the rank where it is largest, and on the fullest, {}",
           label_of(communicator, fullest.rank));
  for (const device::Owner owner : device::kOwners)
    if (most[owner] != 0)
      log.info("          {:<16}{:>14}{:>14}", device::name_of(owner), device::mebibytes(most[owner]),
               device::mebibytes(fullest.peaks.by_owner[owner]));
  log.info("          {:<16}{:>14}{:>14}", "held in all", "", device::mebibytes(fullest.peaks.held));
}

}  // namespace quintet::training
