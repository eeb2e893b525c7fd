// Values that are legal but wait for their feature. A line goes when its feature lands.
#include "tests/config/loading.h"

namespace quintet::config {
namespace {

void require_unbuilt(const std::string& key, const std::string& value, const std::string& works) {
  CHECK(problems_with({key + "=" + value}, 0) ==
        "command line: " + key + "=" + value + ": " + value + " is not built yet; what works now: " + works);
}

TEST_CASE("what is not built yet is refused by name", "[quick][config][unbuilt]") {
  require_unbuilt("train.max_seconds", "60.0", "0");
  for (const std::string format : {"jsonl", "megatron", "llmc", "tokens"}) {
    require_unbuilt("data.format", format, "auto or text");
  }
  require_unbuilt("data.order", "megatron", "quintet");
  require_unbuilt("data.tokenizer", "tokenizer.json", "bytes");
  require_unbuilt("checkpoint.every", "100", "0");
  require_unbuilt("checkpoint.resume", "runs/a/checkpoints", "auto or never");
  require_unbuilt("checkpoint.init_from", "gpt2", "null");
  require_unbuilt("logging.trace_steps", "[10, 12]", "[]");
  require_unbuilt("fault.check_replicas_every", "5", "0");
}

TEST_CASE("what is built is not refused", "[quick][config]") {
  CHECK(problems_with({"device.kind=cuda"}).empty());
  CHECK(problems_with({"device.kind=cuda", "model.moe={experts: 4}", "precision.compute=bf16",
                       "precision.gradients=bf16", "mesh.cp=2", "parallel.zero.stage=2"},
                      8)
            .empty());
  CHECK(problems_with(
            {"device.kind=cpu", "precision.compute=fp64", "parallel.zero.stage=3", "data.format=text",
             "checkpoint.resume=never", "checkpoint.keep=5", "logging.tensorboard=false",
             "logging.gradient_dump_steps=[1]", "fault.on_non_finite=skip", "fault.spike_sigma=6", "model.qk_norm=true",
             "parallel.recompute=selective", "data.validation=0.1", "train.eval_every=5", "mesh.cp=2",
             "data.end_of_document=37", "data.document_mask=true", "data.mask_end_of_document=true"},
            8)
            .empty());
}

}  // namespace
}  // namespace quintet::config
