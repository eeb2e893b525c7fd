// Rules over several keys.
#include <sstream>

#include <fmt/core.h>

#include "tests/config/loading.h"

namespace quintet::config {
namespace {

void require_problem(const Overrides& overrides, const std::string& line, int64_t ranks = 0) {
  const std::string message = fmt::format("\n{}\n", problems_with(overrides, ranks));
  CHECK_THAT(message, Catch::Contains(fmt::format("\n{}\n", line)));
}

// The rule is kept: what is said is at most that something is not built yet.
void require_no_rule_broken(const Overrides& overrides, int64_t ranks = 0) {
  std::istringstream lines(problems_with(overrides, ranks));
  for (std::string line; std::getline(lines, line);) CHECK_THAT(line, Catch::Contains("is not built yet"));
}

TEST_CASE("a tensor-parallel size that does not divide the heads is shown where it stands", "[quick][config][B17]") {
  CHECK_THAT(problems_after("mesh:\n  tp: 3\n", 3),
             Catch::Contains("small.yaml:16:7: mesh.tp: 3 does not divide model.heads (8); choose 1, 2, 4 or 8"));
}

TEST_CASE("head counts, widths and the tensor-parallel size must divide", "[quick][config][B17]") {
  require_problem({"model.heads=6", "model.hidden_size=96", "mesh.tp=4"},
                  "command line: mesh.tp=4: 4 does not divide model.heads (6); choose 1 or 2");
  require_problem({"model.kv_heads=3"},
                  "command line: model.kv_heads=3: 3 does not divide model.heads (8); choose 1, 2, 4 or 8");
  require_problem({"model.kv_heads=16"},
                  "command line: model.kv_heads=16: 16 does not divide model.heads (8); choose 1, 2, 4 or 8");
  require_problem({"model.ffn_hidden_size=250", "mesh.tp=4"},
                  "command line: mesh.tp=4: 4 does not divide model.ffn_hidden_size (250); choose 1 or 2");
  require_problem(
      {"model.heads=4", "model.hidden_size=66"},
      "command line: model.hidden_size=66: 66 is not a multiple of model.heads (4); choose 64 or 68, or give "
      "model.head_dim");
  require_problem({"model.heads=12", "model.hidden_size=96", "model.kv_heads=4", "mesh.tp=6"},
                  "command line: mesh.tp=6: 6 and model.kv_heads (4): one must divide the other; choose 1, 2 or 4");
  require_no_rule_broken({"model.kv_heads=2", "mesh.tp=8"});
  require_no_rule_broken({"model.hidden_size=66", "model.heads=4", "model.head_dim=16"});
}

TEST_CASE("query heads of a group share their keys", "[quick][config]") {
  CHECK(load_small({"model.kv_heads=2"}).model.kv_heads == 2);
  CHECK(load_small().model.kv_heads == 8);
}

TEST_CASE("rope needs an even head width", "[quick][config]") {
  require_problem({"model.position=rope", "model.head_dim=9"},
                  "command line: model.head_dim=9: 9 is odd, but model.position rope turns pairs; choose 8 or 10");
  CHECK(problems_with({"model.position=learned", "model.head_dim=9"}).empty());
}

TEST_CASE("scaled rope needs all its keys and rope", "[quick][config]") {
  const std::string whole = "{kind: llama3, factor: 8, low_freq_factor: 1, high_freq_factor: 4, original_length: 8192}";
  const Config config = load_small({"model.position=rope", "model.rope_scaling=" + whole});
  REQUIRE(config.model.rope_scaling);
  CHECK(config.model.rope_scaling->factor == 8);
  CHECK(config.model.rope_scaling->original_length == 8192);
  CHECK_FALSE(load_small({"model.rope_scaling=" + whole, "model.rope_scaling=null"}).model.rope_scaling);

  require_problem({"model.rope_scaling=" + whole}, "command line: model.rope_scaling=" + whole +
                                                       ": needs model.position rope; remove it, or choose rope");
  require_problem({"model.position=rope", "model.rope_scaling={kind: llama3}"},
                  "small.yaml:3:1: model.rope_scaling.factor: missing; expected a number of at least 1 (by what low "
                  "frequencies are divided)");
  require_problem(
      {"model.position=rope", "model.rope_scaling=" + whole, "model.rope_scaling.low_freq_factor=4"},
      "command line: model.rope_scaling.low_freq_factor=4: 4 is not below model.rope_scaling.high_freq_factor "
      "(4)");
}

TEST_CASE("the axes multiply to the number of ranks", "[quick][config][mesh]") {
  CHECK(load_small({}, 8).mesh.dp == 8);
  CHECK(load_small({"mesh.dp=8"}, 8).mesh.dp == 8);
  CHECK(load_small({"mesh.dp=auto"}, 4).mesh.dp == 4);
  CHECK(load_small({}, 0).mesh.dp == 1);
  CHECK(load_small({"mesh.dp=4"}, 0).mesh.dp == 4);
  require_problem({"mesh.dp=4"},
                  "command line: mesh.dp=4: 4 makes dp*tp*pp*ep*cp = 4*1*1*1*1 = 4, but there are 8 ranks; choose 8 or "
                  "auto, or start 4 ranks",
                  8);
  require_problem({"mesh.tp=2", "mesh.pp=4"},
                  "command line: mesh.tp=2: tp*pp*ep*cp = 2*4*1*1 = 8 does not divide the number of ranks (12); choose "
                  "axes whose product does, or start 8 ranks",
                  12);
  require_no_rule_broken({"mesh.tp=2", "mesh.pp=2"}, 8);
}

TEST_CASE("sequences divide over context and tensor ranks", "[quick][config][B19]") {
  require_problem({"model.seq_length=34", "mesh.cp=2"},
                  "command line: model.seq_length=34: 34 is not a multiple of 2 * mesh.cp (4), as "
                  "parallel.context.balance zigzag needs; choose 32 or 36");
  require_problem({"model.seq_length=30", "mesh.cp=4"},
                  "command line: model.seq_length=30: 30 is not a multiple of 2 * mesh.cp (8), as "
                  "parallel.context.balance zigzag needs; choose 24 or 32");
  require_problem({"model.seq_length=33", "mesh.cp=2", "parallel.context.balance=none"},
                  "command line: model.seq_length=33: 33 is not a multiple of mesh.cp (2); choose 32 or 34");
  require_problem({"model.seq_length=36", "mesh.cp=2", "mesh.tp=4"},
                  "command line: model.seq_length=36: 36 / mesh.cp (2) = 18 is not a multiple of mesh.tp (4), as "
                  "parallel.sequence_parallel needs; choose 32 or 40");
  require_no_rule_broken({"model.seq_length=34", "mesh.cp=2", "parallel.context.balance=none"});
  require_no_rule_broken({"model.seq_length=36", "mesh.cp=2", "mesh.tp=4", "parallel.sequence_parallel=false"});
  CHECK(load_small({"model.seq_length=33"}).model.seq_length == 33);
}

TEST_CASE("ulysses splits the heads of a rank", "[quick][config]") {
  require_problem({"parallel.context.method=ulysses", "mesh.cp=4", "mesh.tp=4"},
                  "command line: mesh.cp=4: 4 does not divide model.heads / mesh.tp (8 / 4 = 2), as "
                  "parallel.context.method ulysses needs; choose 1 or 2");
  require_problem(
      {"model.heads=12", "model.hidden_size=96", "model.kv_heads=4", "parallel.context.method=ulysses",
       "model.seq_length=48", "mesh.cp=6"},
      "command line: mesh.cp=6: 6 and the key and value heads of a rank (4): one must divide the other under "
      "parallel.context.method ulysses; choose 1, 2, 4 or 12");
  require_no_rule_broken({"parallel.context.method=ulysses", "mesh.cp=2", "mesh.tp=4", "model.kv_heads=4"});
}

TEST_CASE("pipeline stages need layers", "[quick][config][B16]") {
  require_problem(
      {"mesh.pp=8"},
      "command line: mesh.pp=8: 8 * parallel.pipeline.virtual_stages (1) = 8 stages need as many layers, but "
      "model.layers is 4; choose 1 to 4");
  require_problem(
      {"mesh.pp=2", "parallel.pipeline.virtual_stages=4", "parallel.pipeline.schedule=interleaved"},
      "command line: mesh.pp=2: 2 * parallel.pipeline.virtual_stages (4) = 8 stages need as many layers, but "
      "model.layers is 4; choose 1");
  require_problem({"parallel.pipeline.virtual_stages=2"},
                  "command line: parallel.pipeline.virtual_stages=2: 2 needs parallel.pipeline.schedule interleaved; "
                  "choose 1, or that schedule");
  require_problem({"parallel.pipeline.virtual_stages=2", "parallel.pipeline.schedule=zero_bubble"},
                  "command line: parallel.pipeline.virtual_stages=2: 2 needs parallel.pipeline.schedule interleaved; "
                  "choose 1, or that schedule");
  require_problem({"parallel.pipeline.virtual_stages=3", "parallel.pipeline.schedule=zero_bubble_v"},
                  "command line: parallel.pipeline.virtual_stages=3: 3 under parallel.pipeline.schedule zero_bubble_v, "
                  "which has 2; choose 2, or leave it out");
  require_problem(
      {"mesh.pp=4", "parallel.pipeline.schedule=zero_bubble_v"},
      "command line: mesh.pp=4: 4 * parallel.pipeline.virtual_stages (2) = 8 stages need as many layers, but "
      "model.layers is 4; choose 1 to 2");
  require_no_rule_broken({"mesh.pp=2", "parallel.pipeline.schedule=zero_bubble_v"});
  require_no_rule_broken(
      {"mesh.pp=2", "parallel.pipeline.schedule=zero_bubble_v", "parallel.pipeline.virtual_stages=2"});
  require_no_rule_broken({"mesh.pp=2", "parallel.pipeline.schedule=interleaved"});  // of one stage a rank
  require_no_rule_broken({"model.layers=6", "mesh.pp=4"});  // an uneven split that drops no layer
}

TEST_CASE("an explicit split of layers has an entry a stage and every layer", "[quick][config][B16]") {
  require_problem({"parallel.pipeline.layers_per_stage=[2, 2]"},
                  "command line: parallel.pipeline.layers_per_stage=[2, 2]: it has 2 for mesh.pp * "
                  "parallel.pipeline.virtual_stages (1 * 1 = 1) stages; give one entry a stage");
  require_problem(
      {"mesh.pp=2", "parallel.pipeline.layers_per_stage=[2, 1]"},
      "command line: parallel.pipeline.layers_per_stage=[2, 1]: the entries add up to 3, but model.layers is "
      "4; they must be equal");
  require_no_rule_broken({"mesh.pp=2", "parallel.pipeline.layers_per_stage=[3, 1]"});
}

TEST_CASE("only the ends of a pipeline may have no layer", "[quick][config]") {
  require_no_rule_broken({"mesh.pp=2", "parallel.pipeline.layers_per_stage=[4, 0]"});
  require_no_rule_broken({"mesh.pp=3", "parallel.pipeline.layers_per_stage=[0, 4, 0]"});
  require_problem(
      {"mesh.pp=3", "parallel.pipeline.layers_per_stage=[2, 0, 2]"},
      "command line: parallel.pipeline.layers_per_stage=[2, 0, 2]: stage 1 has no layer; only the first and "
      "the last stage may have none, which have the embedding and the head; give it at least 1");
  require_problem({"parallel.pipeline.layers_per_stage=[0]"},
                  "command line: parallel.pipeline.layers_per_stage=[0]: the entries add up to 0, but model.layers is "
                  "4; they must be equal");
  require_problem(
      {"mesh.pp=2", "parallel.pipeline.schedule=zero_bubble_v", "parallel.pipeline.layers_per_stage=[0, 4, 0, 0]"},
      "command line: parallel.pipeline.layers_per_stage=[0, 4, 0, 0]: stage 2 has no layer; only the first and "
      "the last stage may have none, which have the embedding and the head; give it at least 1");
}

TEST_CASE("the global batch divides over data ranks and microbatches", "[quick][config]") {
  require_problem(
      {"train.global_batch_size=20", "train.micro_batch_size=2", "mesh.dp=4"},
      "command line: train.global_batch_size=20: 20 is not a multiple of train.micro_batch_size * mesh.dp * "
      "mesh.ep (2 * 4 * 1 = 8); choose 16 or 24");
  require_problem({"train.global_batch_size=3"},
                  "command line: train.global_batch_size=3: 3 is not a multiple of train.micro_batch_size * mesh.dp * "
                  "mesh.ep (1 * 8 * 1 = 8); choose 8",
                  8);
  require_no_rule_broken({"mesh.ep=2", "mesh.dp=4"});  // without experts, ep is a further data axis
  require_problem(
      {"mesh.ep=4", "mesh.dp=4"},
      "small.yaml:10:22: train.global_batch_size: 8 is not a multiple of train.micro_batch_size * mesh.dp * "
      "mesh.ep (1 * 4 * 4 = 16); choose 16");
}

TEST_CASE("the decay ends after the warm-up unless the rate is constant", "[quick][config]") {
  CHECK(load_small().schedule.decay_steps == 10);
  require_problem({"schedule.warmup_steps=10", "schedule.decay_steps=10"},
                  "command line: schedule.decay_steps=10: 10 does not exceed schedule.warmup_steps "
                  "(10); choose at least 11, or schedule.decay constant");
  CHECK(load_small({"schedule.warmup_steps=9", "schedule.decay_steps=10"}).schedule.warmup_steps == 9);
  CHECK(load_small({"schedule.warmup_steps=10", "schedule.decay_steps=10", "schedule.decay=constant"}).schedule.decay ==
        Decay::constant);
}

TEST_CASE("a run without decay_steps may be all warm-up", "[quick][config]") {
  CHECK(load_small({"schedule.warmup_steps=9"}).schedule.decay_steps == 10);
  for (const char* warmup : {"schedule.warmup_steps=10", "schedule.warmup_steps=400"}) {
    const Config config = load_small({warmup});
    CHECK(config.schedule.decay_steps == config.schedule.warmup_steps + 1);
    CHECK(load_from_string(to_yaml(config), "resolved.yaml", {}, 1) == config);
  }
  CHECK(load_small({"schedule.warmup_steps=9223372036854775807"}).schedule.decay_steps == 10);
}

TEST_CASE("experts divide over their ranks, and a token goes to no more than there are", "[quick][config][moe]") {
  require_problem({"model.moe.experts=6", "mesh.ep=4"},
                  "command line: mesh.ep=4: 4 does not divide model.moe.experts (6); choose 1, 2, 3 or 6");
  require_problem({"model.moe.experts=2", "model.moe.top_k=3"},
                  "command line: model.moe.top_k=3: 3 is more than model.moe.experts (2); choose 1 to 2");
  require_problem({"model.moe.experts=4", "model.moe.ffn_hidden_size=30", "mesh.tp=4"},
                  "command line: mesh.tp=4: 4 does not divide model.moe.ffn_hidden_size (30); choose 1 or 2");
  require_problem(
      {"model.moe.experts=4", "model.moe.every=5"},
      "command line: model.moe.every=5: 5 is more than model.layers (4), so no layer would be MoE; choose 1 to 4");
  require_problem(
      {"model.moe={}"},
      "small.yaml:3:1: model.moe.experts: missing; expected an integer from 1 to 16384 (experts of an MoE layer)");
  require_no_rule_broken({"model.moe={experts: 8}", "mesh.ep=4"});
  CHECK_FALSE(load_small({"model.moe={experts: 8}", "model.moe=null"}).model.moe);
}

TEST_CASE("the vocabulary holds the tokenizer's ids", "[quick][config]") {
  CHECK(load_small().model.vocab_size == 256);
  CHECK(load_small({"model.vocab_size=300"}).model.vocab_size == 300);
  require_problem(
      {"model.vocab_size=250"},
      "command line: model.vocab_size=250: 250 is less than the 256 ids of data.tokenizer bytes; choose auto or "
      "at least 256");
}

TEST_CASE("data keys that exclude one another are refused", "[quick][config][data]") {
  require_problem(
      {"data.split='969,30,1'"},
      "command line: data.split='969,30,1': goes with data.order megatron only; use data.validation, or that "
      "order");
  require_problem(
      {"data.split=\"969,30,1\"", "data.order=megatron", "data.validation=0.1"},
      "command line: data.validation=0.1: a fraction and data.split exclude one another; remove one of the two");
  require_no_rule_broken({"data.split=\"969,30,1\"", "data.order=megatron"});
  require_problem(
      {"data.split=969"},
      "command line: data.split=969: 969 does not fit; expected three shares such as \"969,30,1\", or null");
  require_problem({"train.eval_every=5"},
                  "command line: train.eval_every=5: 5 needs data.validation; give files or a fraction such as 0.01");
}

TEST_CASE("masks of documents need a token that ends them", "[quick][config][documents]") {
  for (const std::string key : {"data.document_mask", "data.mask_end_of_document"}) {
    require_problem({key + "=true"},
                    fmt::format("command line: {0}=true: needs to know where documents end, but data.tokenizer bytes "
                                "has no token for that; give data.end_of_document, such as 10 where a line is a "
                                "document, or choose false",
                                key));
    CHECK(problems_with({key + "=true", "data.end_of_document=0"}).empty());
    CHECK(problems_with({key + "=false"}).empty());
  }
  require_problem({"data.end_of_document=256"},
                  "command line: data.end_of_document=256: 256 is not a token of model.vocab_size (256); choose 0 to "
                  "255");
  CHECK(load_small({"data.end_of_document=255"}).data.end_of_document == 255);
  CHECK_FALSE(load_small().data.end_of_document);
}

TEST_CASE("sizes whose products leave 64 bits are refused, not wrapped", "[quick][config]") {
  const std::string huge = "2147483647";
  const std::string message =
      problems_with({"mesh.dp=" + huge, "mesh.tp=" + huge, "mesh.pp=" + huge, "mesh.ep=" + huge, "mesh.cp=" + huge,
                     "model.hidden_size=" + huge, "model.heads=1", "train.steps=9223372036854775807",
                     "train.global_batch_size=" + huge, "train.micro_batch_size=" + huge, "model.layers=16384",
                     "model.seq_length=" + huge, "parallel.pipeline.virtual_stages=" + huge},
                    8);
  CHECK_THAT(message, Catch::Contains("= 9223372036854775807 does not divide the number of ranks (8)"));
  CHECK_THAT(message, Catch::Contains("are more tokens than 64 bits count"));
  CHECK_THAT(message, Catch::Contains("makes more than 2^50 parameters"));
}

TEST_CASE("experts of more than 2^50 elements are refused", "[quick][config][moe]") {
  const Overrides wide = {"model.hidden_size=1048576", "model.layers=2", "model.moe.experts=255",
                          "model.moe.shared_experts=1", "model.ffn_hidden_size=1"};
  const auto with_width = [&](int64_t width) {
    Overrides all = wide;
    all.push_back(fmt::format("model.moe.ffn_hidden_size={}", width));
    return all;
  };
  require_no_rule_broken(with_width(2097152));
  require_problem(with_width(2097153),
                  "command line: model.moe.experts=255: 255 and 1 shared ones in 2 layers, each model.hidden_size "
                  "(1048576) by model.moe.ffn_hidden_size (2097153), make more than 2^50 parameters; choose less");
  CHECK_THAT(problems_with({"model.moe.experts=2000000000"}), Catch::Contains("16384"));
}

TEST_CASE("tables and activations of more than 2^50 elements are refused, and those of 2^50 are not",
          "[quick][config]") {
  const std::string width = "model.hidden_size=1048576";  // 2^20
  require_problem({width, "model.vocab_size=1073741825"},
                  "command line: model.vocab_size=1073741825: 1073741825 rows of model.hidden_size (1048576) are an "
                  "embedding of more than 2^50 parameters; lower one of the two");
  require_problem({width, "model.ffn_hidden_size=1", "model.layers=1", "model.seq_length=1073741825"},
                  "command line: model.seq_length=1073741825: 1073741825 rows of model.hidden_size (1048576) are a "
                  "table of more than 2^50 elements; lower one of the two");
  require_no_rule_broken({width, "model.layers=1", "model.seq_length=1", "model.vocab_size=1073741824"});
  require_no_rule_broken({width, "model.layers=1", "model.seq_length=1073741824", "model.ffn_hidden_size=1"});

  const auto activations = [](int64_t micro, int64_t heads, int64_t ffn, int64_t vocab) {
    return Overrides{"model.seq_length=1048576",
                     "model.layers=1",
                     fmt::format("train.micro_batch_size={}", micro),
                     fmt::format("train.global_batch_size={}", micro),
                     fmt::format("model.heads={}", heads),
                     fmt::format("model.ffn_hidden_size={}", ffn),
                     fmt::format("model.vocab_size={}", vocab),
                     "model.head_dim=64"};
  };
  const auto line = [](int64_t micro, int64_t heads, int64_t ffn, int64_t vocab) {
    return fmt::format(
        "command line: train.micro_batch_size={0}: {0} sequences of model.seq_length (1048576), by the widest of "
        "model.hidden_size (64), model.heads * model.head_dim ({1} * 64), model.ffn_hidden_size ({2}) and "
        "model.vocab_size ({3}), make activations of more than 2^50 elements; lower train.micro_batch_size, "
        "model.seq_length or the widest",
        micro, heads, ffn, vocab);
  };
  require_no_rule_broken(activations(262144, 64, 4096, 4096));
  require_problem(activations(262145, 64, 4096, 4096), line(262145, 64, 4096, 4096));
  require_problem(activations(262144, 65, 4096, 4096), line(262144, 65, 4096, 4096));
  require_problem(activations(262144, 64, 4097, 4096), line(262144, 64, 4097, 4096));
  require_problem(activations(262144, 64, 4096, 4097), line(262144, 64, 4096, 4097));
  require_problem(activations(16777217, 1, 1, 256), line(16777217, 1, 1, 256));
  require_problem(activations(2147483647, 1, 2147483647, 2147483647), line(2147483647, 1, 2147483647, 2147483647));
}

TEST_CASE("an epsilon that vanishes in fp32 is refused unless AdamW computes in fp64", "[quick][config]") {
  require_problem({"optimizer.epsilon=9.9e-31"},
                  "command line: optimizer.epsilon=9.9e-31: 9.9e-31 is below 1e-30, so under precision.compute fp32 it "
                  "can vanish in fp32 and a gradient of zero gives 0/0; choose 1.0e-8, or precision.compute fp64");
  CHECK_THAT(problems_with({"optimizer.epsilon=1e-300", "precision.compute=bf16"}),
             Catch::Contains("so under precision.compute bf16 it can vanish"));
  CHECK(load_small({"optimizer.epsilon=1.0e-30"}).optimizer.epsilon == 1e-30);
  CHECK(load_small({"optimizer.epsilon=1e-300", "precision.compute=fp64"}).optimizer.epsilon == 1e-300);
}

TEST_CASE("fp64 on a GPU is refused", "[quick][config]") {
  require_problem(
      {"precision.compute=fp64", "device.kind=cuda"},
      "command line: precision.compute=fp64: fp64 is for proofs on the CPU; choose fp32, or device.kind cpu");
  CHECK(problems_with({"precision.compute=fp64", "device.kind=auto"}).empty());
}

TEST_CASE("a dump of a step that is never reached is refused", "[quick][config]") {
  require_problem({"logging.gradient_dump_steps=[1, 12, 11]"},
                  "command line: logging.gradient_dump_steps=[1, 12, 11]: 12 is beyond train.steps (10) and would "
                  "never be written; choose steps from 1 to 10");
  require_problem({"logging.weight_dump_steps=[11, 0]"},
                  "command line: logging.weight_dump_steps=[11, 0]: 11 is beyond train.steps (10) and would never be "
                  "written; choose steps from 0 to 10");
  CHECK(load_small({"logging.gradient_dump_steps=[1, 10]"}).logging.gradient_dump_steps.back() == 10);
  CHECK(load_small({"logging.weight_dump_steps=[0, 10]"}).logging.weight_dump_steps.back() == 10);
}

TEST_CASE("a rule over a key that is wrong in itself is not judged", "[quick][config]") {
  CHECK(problems_with({"model.heads=zero"}) ==
        "command line: model.heads=zero: zero does not fit; expected an integer of at least 1");
  CHECK(problems_with({"train.steps=1e3", "schedule.warmup_steps=5000"}) ==
        "command line: train.steps=1e3: 1e3 is not written as an integer; write 1000");
}

}  // namespace
}  // namespace quintet::config
