#include "lib/pipeline/memory_bound.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "lib/base/error.h"
#include "lib/comm/null_world.h"
#include "lib/device/null_device.h"
#include "lib/pipeline/engine.h"

namespace quintet::pipeline {
namespace {

// A batch of the shape that data would give, all of it zeros but the rows' identities.
void fill(const config::Config& config, const std::vector<data::Chunk>& chunks, data::Batch& batch) {
  batch.size = config.train.micro_batch_size;
  batch.sequence_length = config.model.seq_length;
  batch.rows.clear();
  for (const data::Chunk& chunk : chunks)
    for (int64_t sample = 0; sample < batch.size; ++sample)
      for (int64_t position = chunk.begin; position < chunk.end(); ++position)
        batch.rows.push_back(sample * batch.sequence_length + position);
  const size_t rows = batch.rows.size();
  for (std::vector<int32_t>* values : {&batch.tokens, &batch.targets, &batch.positions}) values->assign(rows, 0);
  if (config.data.document_mask) {
    batch.document_starts.assign(rows, 0);
    batch.all_document_starts.assign(static_cast<size_t>(batch.size * batch.sequence_length), 0);
  }
  batch.counted = static_cast<int64_t>(rows);
}

class KeptRankLabel {
 public:
  ~KeptRankLabel() { set_rank_label(label_); }

 private:
  std::string label_ = rank_label();
};

}  // namespace

MemoryBound memory_bound(const config::Config& config, const comm::Placement& placement) {
  const KeptRankLabel label;  // from the dry run's communicator, which has its own
  const auto device = device::make_null_device();
  comm::Communicator communicator(placement, comm::make_null_transport());
  communicator.set_mesh(Mesh(config.mesh.sizes(), config.mesh.order));
  Engine engine(config, communicator, *device);
  const Gradients gradients =
      engine.forward_backward([&](int64_t, data::Batch& batch) { fill(config, engine.chunks(), batch); });
  engine.update(0, gradients);
  if (!std::holds_alternative<std::monostate>(config.data.validation))
    engine.evaluate(engine.microbatches(), [&](int64_t, data::Batch& batch) { fill(config, engine.chunks(), batch); });
  return {.bytes = engine.ledger().peak_bytes(),
          .by_owner = engine.ledger().peak_by_owner(),
          .arenas = engine.executor().arena_sizes()};
}

std::string memory_advice(const config::Config& config, device::Owner owner) {
  using device::Owner;
  std::vector<std::string> advice;
  const auto advise = [&](bool applies, const char* text) {
    if (applies) advice.emplace_back(text);
  };
  const config::Parallel& parallel = config.parallel;
  const bool splits_data = config.mesh.dp * config.mesh.ep * config.mesh.cp > 1;
  switch (owner) {
    case Owner::weights:
    case Owner::gradients:
    case Owner::moments:
    case Owner::master_weights:
    case Owner::gathered_units:
    case Owner::gradient_units:
      advise(parallel.zero.stage < 3 && splits_data, "a higher parallel.zero.stage");
      advise(parallel.zero.stage >= 1 || !splits_data, "a larger mesh.dp under parallel.zero.stage");
      advise(config.model.moe.has_value(), "a larger mesh.ep");
      advise(true, "a larger mesh.tp or mesh.pp");
      break;
    case Owner::activations:
    case Owner::expert_buffers:
      advise(config.train.micro_batch_size > 1, "a smaller train.micro_batch_size");
      advise(parallel.recompute != config::Recompute::full, "parallel.recompute full");
      advise(parallel.pipeline.schedule == config::PipelineSchedule::gpipe && config.mesh.pp > 1,
             "parallel.pipeline.schedule 1f1b");
      advise(owner == Owner::expert_buffers, "a larger mesh.ep, a model.moe.capacity_factor");
      advise(true, "a larger mesh.tp or mesh.cp");
      break;
    case Owner::logits:
    case Owner::communication:
    case Owner::tables:
    case Owner::workspace:
      advise(config.train.micro_batch_size > 1, "a smaller train.micro_batch_size");
      advise(true, "a larger mesh.tp or mesh.cp");
      break;
  }
  advice.emplace_back("fewer ranks a node");
  advice.emplace_back("a smaller model");
  std::string text;
  for (size_t i = 0; i < advice.size(); ++i) text += (i == 0 ? "" : i + 1 == advice.size() ? " or " : ", ") + advice[i];
  return text;
}

void require_memory(const config::Config& config, comm::Communicator& communicator, const MemoryBound& own,
                    const AvailableMemory& available) {
  const comm::Placement& placement = communicator.placement();
  // Of all ranks: which memory they share, what they need, by owner.
  struct Need {
    int64_t node, gpu, bytes;  // gpu -1: the host's memory
    device::BytesByOwner by_owner;
  };
  constexpr auto kWords = static_cast<int64_t>(sizeof(Need) / sizeof(int64_t));
  const Need need{.node = static_cast<int64_t>(std::hash<std::string>()(placement.node)),
                  .gpu = available.gpu.value_or(-1),
                  .bytes = own.bytes,
                  .by_owner = own.by_owner};
  std::vector<Need> needs(static_cast<size_t>(placement.world_size));
  needs[0] = need;
  Need sent = need;
  communicator.world()
      .all_gather(Tensor(&sent, DType::i64, {kWords}), std::vector<int64_t>(needs.size(), kWords),
                  Tensor(needs.data(), DType::i64, {kWords * placement.world_size}), "memory of ranks")
      .wait();
  int64_t bytes = 0, ranks = 0;
  device::BytesByOwner by_owner;
  for (const Need& other : needs) {
    if (other.node != need.node || other.gpu != need.gpu) continue;
    ++ranks;
    bytes += other.bytes;
    for (const device::Owner owner : device::kOwners) by_owner[owner] += other.by_owner[owner];
  }
  if (bytes <= available.bytes) return;
  device::Owner breaks = device::kOwners.back();
  int64_t taken = 0;
  for (const device::Owner owner : device::kOwners) {
    taken += by_owner[owner];
    if (taken <= available.bytes) continue;
    breaks = owner;
    break;
  }
  fail(ExitCode::config,
       "memory: the first step of the {} on {} of node {} needs {} at least, and {} are free: {}; there is no room for "
       "{}; choose {}",
       ranks == 1 ? "rank" : fmt::format("{} ranks", ranks),
       available.gpu ? fmt::format("GPU {}", *available.gpu) : "the CPUs", placement.node, device::mebibytes(bytes),
       device::mebibytes(available.bytes), device::describe(by_owner), device::name_of(breaks),
       memory_advice(config, breaks));
}

}  // namespace quintet::pipeline
