// The table of keys and what is made of it: YAML, schema, explanations, differences.
#include <algorithm>
#include <iterator>
#include <set>
#include <sstream>

#include <nlohmann/json.hpp>

#include "lib/config/keys.h"
#include "tests/config/loading.h"

namespace quintet::config {
namespace {

using Json = nlohmann::json;

// The contract's keys, in its order.
constexpr const char* kContractKeys = R"(
    run.name run.dir run.seed
    mesh.dp mesh.tp mesh.pp mesh.ep mesh.cp mesh.order
    device.kind device.threads device.peak_tflops
    model.seq_length model.vocab_size model.layers model.hidden_size model.heads model.kv_heads
    model.head_dim model.ffn_hidden_size model.norm model.norm_epsilon model.activation model.position
    model.rope_theta model.rope_scaling.kind model.rope_scaling.factor model.rope_scaling.low_freq_factor
    model.rope_scaling.high_freq_factor model.rope_scaling.original_length model.qk_norm model.bias
    model.qkv_bias model.tie_embeddings model.dropout model.init_std model.moe.experts model.moe.top_k
    model.moe.ffn_hidden_size model.moe.every model.moe.shared_experts model.moe.normalize_top_k
    model.moe.routing model.moe.balance model.moe.bias_update_rate model.moe.aux_loss_weight
    model.moe.z_loss_weight model.moe.capacity_factor
    parallel.sequence_parallel parallel.pipeline.schedule parallel.pipeline.virtual_stages
    parallel.pipeline.layers_per_stage parallel.context.method parallel.context.balance parallel.zero.stage
    parallel.zero.bucket_mb parallel.zero.overlap parallel.recompute
    precision.compute precision.gradients
    train.steps train.global_batch_size train.micro_batch_size train.eval_every train.eval_steps
    train.max_seconds
    optimizer.learning_rate optimizer.betas optimizer.epsilon optimizer.weight_decay optimizer.clip_grad_norm
    schedule.warmup_steps schedule.decay schedule.decay_steps schedule.min_learning_rate
    data.train data.validation data.format data.order data.split data.tokenizer data.shuffle
    data.document_mask data.mask_end_of_document data.end_of_document
    checkpoint.every checkpoint.keep checkpoint.async checkpoint.resume checkpoint.init_from
    logging.level logging.every logging.tensorboard logging.trace_steps logging.gradient_dump_steps
    logging.weight_dump_steps
    fault.on_non_finite fault.max_skipped_steps fault.spike_sigma fault.check_replicas_every
    fault.watchdog_seconds)";

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

const std::vector<std::string> kContract = words_of(kContractKeys);

// A config in which every key that is built has another value than its default.
const Overrides kUnusual = {
    "run.name='2 #x'",
    "run.dir=\"a \\\"b\\\\ null\"",
    "run.seed=9223372036854775807",
    "mesh.dp=4",
    "mesh.order=[pp, dp, ep, cp, tp]",
    "device.kind=cpu",
    "device.threads=3",
    "device.peak_tflops=0.1",
    "model.seq_length=48",
    "model.vocab_size=300",
    "model.layers=3",
    "model.hidden_size=96",
    "model.heads=6",
    "model.kv_heads=2",
    "model.head_dim=20",
    "model.ffn_hidden_size=100",
    "model.norm=rmsnorm",
    "model.norm_epsilon=1e-6",
    "model.activation=swiglu",
    "model.position=rope",
    "model.rope_theta=500000.1",
    "model.rope_scaling={kind: llama3, factor: 8.5, low_freq_factor: 1, high_freq_factor: 4, original_length: 64}",
    "model.qk_norm=true",
    "model.bias=false",
    "model.qkv_bias=true",
    "model.tie_embeddings=false",
    "model.dropout=0.25",
    "model.init_std=0.006",
    "parallel.sequence_parallel=false",
    "parallel.pipeline.schedule=gpipe",
    "parallel.pipeline.layers_per_stage=[3]",
    "parallel.context.method=ulysses",
    "parallel.context.balance=none",
    "parallel.zero.stage=0",
    "parallel.zero.bucket_mb=0.3333333333333333",
    "parallel.zero.overlap=false",
    "precision.compute=fp64",
    "train.steps=1000",
    "train.global_batch_size=16",
    "train.micro_batch_size=2",
    "train.eval_every=7",
    "train.eval_steps=2",
    "optimizer.learning_rate=3e-22",
    "optimizer.betas=[0, 0.999]",
    "optimizer.epsilon=1e+300",
    "optimizer.weight_decay=0",
    "optimizer.clip_grad_norm=.inf",
    "schedule.warmup_steps=5",
    "schedule.decay=wsd",
    "schedule.decay_steps=900",
    "schedule.min_learning_rate=1e-23",
    "data.train=[{path: \"*: &a\", weight: 0.1}, {path: 'true', weight: 2}]",
    "data.validation=[\"0.5\", b/c.txt]",
    "data.format=text",
    "data.shuffle=false",
    "data.document_mask=true",
    "data.mask_end_of_document=true",
    "data.end_of_document=37",
    "checkpoint.keep=7",
    "checkpoint.async=false",
    "checkpoint.resume=never",
    "logging.level=debug",
    "logging.every=9",
    "logging.tensorboard=false",
    "logging.gradient_dump_steps=[1, 3]",
    "logging.weight_dump_steps=[0, 2]",
    "fault.on_non_finite=skip",
    "fault.max_skipped_steps=0",
    "fault.spike_sigma=6.5",
    "fault.watchdog_seconds=0.25"};

Config reloaded(const Config& config) { return load_from_string(to_yaml(config), "written.yaml", Overrides{}, 4); }

TEST_CASE("every key of the contract is declared, and no other", "[quick][config]") { CHECK(key_paths() == kContract); }

TEST_CASE("defaults are those of the contract", "[quick][config]") {
  const Config config = load_small({}, 8);
  CHECK(config.run.dir == "runs");
  CHECK(config.run.seed == 1234);
  CHECK(config.model.kv_heads == 8);
  CHECK(config.model.head_dim == 8);
  CHECK(config.model.ffn_hidden_size == 256);
  CHECK(config.model.norm_epsilon == 1e-5);
  CHECK(config.model.qkv_bias);
  CHECK_FALSE(load_small({"model.bias=false"}).model.qkv_bias);
  CHECK(config.parallel.zero.stage == 1);
  CHECK(config.parallel.zero.bucket_mb == 32);
  CHECK(config.optimizer.betas == std::array{0.9, 0.95});
  CHECK(config.optimizer.epsilon == 1e-8);
  CHECK(config.optimizer.weight_decay == 0.1);
  CHECK(config.schedule.decay == Decay::cosine);
  CHECK(config.schedule.decay_steps == config.train.steps);
  CHECK(config.data.tokenizer == "bytes");
  CHECK(config.data.shuffle);
  CHECK(config.checkpoint.keep == 2);
  CHECK(config.fault.watchdog_seconds == 600);
}

TEST_CASE("a config that is written and read again is the same", "[quick][config]") {
  const Config defaults = load_small({}, 4);
  CHECK(reloaded(defaults) == defaults);
  const Config unusual = load_small(kUnusual, 4);
  INFO(to_yaml(unusual));
  CHECK(reloaded(unusual) == unusual);
  CHECK(to_yaml(reloaded(unusual)) == to_yaml(unusual));
}

TEST_CASE("the unusual config changes every key that is not waiting for its feature", "[quick][config]") {
  const std::set<std::string> waiting = {"mesh.tp",
                                         "mesh.pp",
                                         "mesh.ep",
                                         "mesh.cp",
                                         "parallel.pipeline.virtual_stages",
                                         "parallel.recompute",
                                         "precision.gradients",
                                         "train.max_seconds",
                                         "data.order",
                                         "data.split",
                                         "data.tokenizer",
                                         "checkpoint.every",
                                         "checkpoint.init_from",
                                         "logging.trace_steps",
                                         "fault.check_replicas_every"};
  std::set<std::string> seen = waiting;
  seen.insert("model.qkv_bias");  // true in both: once from model.bias, once against it
  for (const Difference& difference : differences(load_small({}, 1), load_small(kUnusual, 4)))
    seen.insert(difference.key);
  for (const std::string& key : kContract) {
    if (key.rfind("model.moe.", 0) == 0) continue;
    INFO(key);
    CHECK(seen.count(key) == 1);
  }
}

TEST_CASE("a written config has every key resolved, with floats that read as floats", "[quick][config]") {
  const std::string text = to_yaml(load_small({"optimizer.learning_rate=1e-5"}, 8));
  for (const std::string line :
       {"  dp: 8\n", "  vocab_size: 256\n", "  kv_heads: 8\n", "  head_dim: 8\n", "  ffn_hidden_size: 256\n",
        "  learning_rate: 1.0e-05\n", "  decay_steps: 10\n", "  threads: auto\n", "  zero:\n    stage: 1\n",
        "    bucket_mb: 32.0\n", "    schedule: 1f1b\n", "  moe: null\n", "  qkv_bias: true\n",
        "  train: [corpus.txt]\n"}) {
    CHECK_THAT(text, Catch::Contains(line));
  }
  CHECK_THAT(text, Catch::StartsWith("run:\n  name: small\n  dir: runs\n  seed: 1234\nmesh:\n  dp: 8\n"));
}

TEST_CASE("the schema is JSON that knows every key and nothing else", "[quick][config]") {
  const Json schema = Json::parse(schema_json());
  for (std::string path : kContract) {
    INFO(path);
    const Json* here = &schema;
    for (size_t dot = 0; dot != std::string::npos;) {
      dot = path.find('.');
      CHECK(here->at("additionalProperties") == false);
      here = &here->at("properties").at(path.substr(0, dot));
      path = path.substr(dot + 1);
    }
    CHECK(here->at("description").is_string());
    CHECK((here->contains("type") || here->contains("anyOf") || here->contains("enum")));
    CHECK(here->at("x-resume").is_string());
  }
  const Json& properties = schema.at("properties");
  CHECK(properties.at("include").at("type") == "array");
  CHECK(properties.at("model").at("properties").at("norm").at("enum") == Json({"layernorm", "rmsnorm"}));
  CHECK(properties.at("optimizer").at("properties").at("betas").at("default") == Json({0.9, 0.95}));
  CHECK(properties.at("run").at("properties").at("seed").at("default") == 1234);
  CHECK(properties.at("model").at("properties").at("moe").at("required") == Json({"experts"}));
  CHECK(properties.at("model").at("properties").at("moe").at("type") == Json({"object", "null"}));
}

TEST_CASE("each key and section is explained, and an unknown one suggested", "[quick][config]") {
  for (const std::string& key : kContract) {
    CHECK_THAT(explain(key),
               Catch::StartsWith(key + "\n") && Catch::Contains("default:") && Catch::Contains("on resume:"));
  }
  CHECK(explain("model.kv_heads") ==
        "model.kv_heads\n"
        "  key and value heads; fewer than heads is grouped-query attention\n"
        "  value:     an integer of at least 1\n"
        "  default:   heads\n"
        "  on resume: fixed: a checkpoint with another value is refused\n");
  CHECK_THAT(explain("parallel"), Catch::Contains("parallel.zero.stage") && Catch::Contains("parallel.recompute"));
  CHECK_THROWS_WITH(explain("mesh.pt"), "mesh.pt: unknown key; did you mean mesh.tp?");
  CHECK_THROWS_WITH(explain("lr"), "lr: unknown key; did you mean optimizer.learning_rate?");
}

TEST_CASE("the README's table has a row a key", "[quick][config]") {
  const std::string table = keys_markdown();
  CHECK(static_cast<size_t>(std::count(table.begin(), table.end(), '\n')) == kContract.size() + 2);
  CHECK_THAT(table, Catch::Contains("| `mesh.tp` | `1` | an integer of at least 1 | free | ranks that split heads, MLP "
                                    "columns and the vocabulary |\n"));
  CHECK_THAT(table, Catch::Contains("| `model.heads` | required |"));
}

TEST_CASE("differences carry both values and the key's resume class", "[quick][config]") {
  const Config saved = load_small();
  CHECK(differences(saved, saved).empty());
  const std::vector<Difference> found = differences(
      saved, load_small({"run.seed=5", "optimizer.learning_rate=0.5", "logging.every=3", "model.position=rope",
                         "model.rope_scaling={kind: llama3, factor: 8, low_freq_factor: 1, high_freq_factor: 4, "
                         "original_length: 64}"}));
  REQUIRE(found.size() == 9);
  CHECK(found[0].key == "run.seed");
  CHECK(found[0].saved == "1234");
  CHECK(found[0].now == "5");
  CHECK(found[0].resume_class == ResumeClass::fixed);
  CHECK(found[2].key == "model.rope_scaling.kind");
  CHECK(found[2].saved == "absent");
  CHECK(found[2].now == "llama3");
  CHECK(found[7].key == "optimizer.learning_rate");
  CHECK(found[7].resume_class == ResumeClass::noted);
  CHECK(found[8].key == "logging.every");
  CHECK(found[8].resume_class == ResumeClass::free);
}

}  // namespace
}  // namespace quintet::config
