#include "tests/model/stage_run.h"

#include <cstring>
#include <limits>

#include "lib/base/random.h"

namespace quintet::testing {

StageRun::StageRun(const config::Config& config, comm::Communicator& communicator, const device::ElementTypes& types)
    : config_(config),
      owned_device_(device::make_cpu_device(1)),
      device_(*owned_device_),
      types_(types),
      store_(communicator.mesh(), communicator.mesh().coordinate_of(communicator.placement().rank)),
      rope_(device_, ledger_, config.model, types.statistics),
      tensor_(communicator, config.parallel.sequence_parallel),
      context_(communicator, config.parallel.context, config.model.seq_length),
      scratch_(device_, ledger_, device::Owner::workspace),
      logits_(device_, ledger_, device::Owner::logits),
      messages_(device_, ledger_, device::Owner::communication) {
  stage_.emplace(store_, config, rope_, model::StagePart{.first_layer = 0, .layers = config.model.layers});
  store_.lay_out(types, int64_t{1} << 20);
  store_.allocate(device_, ledger_);
  store_.initialise(device_, 3);
  if (config.model.moe) dispatch_.emplace(communicator, device_, tensor_, config.model.moe->experts);
}

std::unique_ptr<StageRun::InFlight> StageRun::forward(int64_t index) {
  auto made = std::make_unique<InFlight>(*this);
  InFlight& m = *made;
  const int64_t sequences = config_.train.micro_batch_size, length = config_.model.seq_length;
  const int64_t first_ordinal = index * sequences;
  const auto token = [&](int64_t row) {
    return static_cast<int32_t>(philox(17, static_cast<uint64_t>(row), 0)[0] % 250);
  };
  for (const data::Chunk& chunk : context_.chunks())
    for (int64_t b = 0; b < sequences; ++b)
      for (int64_t p = chunk.begin; p < chunk.end(); ++p) {
        const int64_t row = (first_ordinal + b) * length + p;
        m.tokens.push_back(token(row));
        m.targets.push_back(p % 7 == 6 ? data::kNotCounted : token(row + 1));
        m.positions.push_back(static_cast<int32_t>(p));
        m.rows.push_back(row);
      }
  const auto upload = [&]<typename T>(std::vector<T>& values) {
    const Shape shape = {static_cast<int64_t>(values.size())};
    const Tensor tensor = m.arena.allocate(kDTypeOf<T>, shape);
    device_.copy(Tensor(values.data(), kDTypeOf<T>, shape), tensor);
    return tensor;
  };
  m.batch = {.sequences = sequences,
             .tokens = upload(m.tokens),
             .targets = upload(m.targets),
             .positions = upload(m.positions),
             .rows = upload(m.rows),
             .host_rows = m.rows,
             .first_ordinal = first_ordinal,
             .document_starts = {},
             .all_document_starts = {}};
  model::Pass there = pass(m);
  stage_->forward(there, {}, {}, m.saved);
  return made;
}

model::Pass StageRun::pass(InFlight& in_flight, model::Mode mode) {
  return {.device = device_,
          .saved = in_flight.arena,
          .scratch = scratch_,
          .logits = logits_,
          .tensor = tensor_,
          .context = context_,
          .units = nobody_,
          .batch = in_flight.batch,
          .types = types_,
          .mode = mode,
          .recompute = config_.parallel.recompute,
          .dropout = config_.model.dropout,
          .seed = 5,
          .loss_scale = 1.0 / 16,
          .dispatch = dispatch_ ? &*dispatch_ : nullptr};
}

Tensor StageRun::message() {
  messages_.reset();
  const int64_t tokens = config_.train.micro_batch_size * context_.local_positions();
  return messages_.allocate(types_.compute, {tensor_.local_rows(tokens), config_.model.hidden_size});
}

void StageRun::forget() {
  const auto poison = [&](Tensor tensor) { device_.fill(tensor, std::numeric_limits<double>::quiet_NaN()); };
  poison(message());
  const device::ArenaScope scope(scratch_);
  for (int i = 0; i < 64; ++i) poison(scratch_.allocate(types_.compute, {8192}));
}

void StageRun::clear_gradients() { device_.fill(store_.all_gradients(), 0); }

std::vector<std::vector<std::byte>> StageRun::gradients() const {
  std::vector<std::vector<std::byte>> all;
  for (const parallel::Parameter& parameter : store_.parameters()) {
    if (!parameter.spec().trained) continue;
    const Tensor gradient = parameter.gradient();
    std::vector<std::byte>& bytes = all.emplace_back(static_cast<size_t>(gradient.bytes()));
    std::memcpy(bytes.data(), gradient.data(), bytes.size());
  }
  return all;
}

}  // namespace quintet::testing
