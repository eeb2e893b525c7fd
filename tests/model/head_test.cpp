// The head goes through its tokens chunk by chunk.
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/model/stage_run.h"
#include "tests/support/training_run.h"

namespace quintet::testing {
namespace {

struct Result {
  std::vector<std::vector<std::byte>> gradients;
  double loss = 0;
};

// One microbatch of 1200 tokens, a rank of `ranks` along tp, with logits of up to `bytes`.
Result result_of(const config::Config& config, comm::Communicator& communicator, int64_t bytes) {
  StageRun run(config, communicator, {});
  const auto in_flight = run.forward(0);
  model::Pass pass = run.pass(*in_flight);
  pass.logits_bytes = bytes;
  run.stage().backward(pass, in_flight->saved, run.message());
  return {run.gradients(), in_flight->saved.head.loss.value()};
}

}  // namespace

TEST_CASE("the head's loss and gradients have the same bits whatever its chunk", "[quick][model]") {
  for (const int64_t ranks : {1, 2}) {
    const config::Config config =
        tiny_config({"model.layers=1", "model.hidden_size=32", "model.seq_length=400", "train.micro_batch_size=3",
                     "train.global_batch_size=3", "precision.compute=fp32", "mesh.tp=" + std::to_string(ranks)},
                    ranks);
    std::vector<int> differing(static_cast<size_t>(ranks));
    const int code = comm::run_thread_ranks(ranks, [&](comm::Communicator& communicator) {
      communicator.set_mesh(Mesh(config.mesh.sizes(), config.mesh.order));
      communicator.set_watchdog(60);
      const Result at_once = result_of(config, communicator, int64_t{1} << 30);
      // One block of 512 tokens at a time; two.
      for (const int64_t bytes : {int64_t{1}, int64_t{2} * 512 * 256 / ranks * 4}) {
        const Result in_chunks = result_of(config, communicator, bytes);
        if (in_chunks.gradients != at_once.gradients || in_chunks.loss != at_once.loss)
          ++differing[static_cast<size_t>(communicator.placement().rank)];
      }
      if (communicator.placement().rank == 0 && at_once.loss <= 0) ++differing[0];
    });
    REQUIRE(code == 0);
    REQUIRE(differing == std::vector<int>(differing.size(), 0));
  }
}

}  // namespace quintet::testing
