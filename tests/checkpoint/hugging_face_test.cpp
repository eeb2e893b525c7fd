#include "lib/checkpoint/hugging_face.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lib/base/error.h"
#include "tests/support/temporary_folder.h"

namespace quintet::checkpoint {

using testing::read_whole;
using testing::TemporaryFolder;
namespace {

using config::Activation;
using config::Norm;
using config::Position;

config::Model gpt2() {
  config::Model model;
  model.seq_length = 6;
  model.vocab_size = 10;
  model.layers = 2;
  model.hidden_size = 4;
  model.heads = model.kv_heads = 2;
  model.head_dim = 2;
  model.ffn_hidden_size = 12;
  model.norm_epsilon = 1e-5;
  model.rope_theta = 10000;
  model.bias = model.qkv_bias = model.tie_embeddings = true;
  return model;
}

config::Model llama() {
  config::Model model = gpt2();
  model.norm = Norm::rmsnorm;
  model.activation = Activation::swiglu;
  model.position = Position::rope;
  model.bias = model.qkv_bias = model.tie_embeddings = false;
  model.kv_heads = 1;
  return model;
}

config::Model mixtral() {
  config::Model model = llama();
  model.moe.emplace();
  model.moe->experts = 3;
  model.moe->top_k = 2;
  model.moe->ffn_hidden_size = 5;
  model.moe->every = 1;
  model.moe->normalize_top_k = true;
  model.moe->aux_loss_weight = 0.02;
  return model;
}

// SPEC section 6 for the models of this file, in order.
std::vector<TensorEntry> parameters_of(const config::Model& m, DType dtype = DType::fp32) {
  std::vector<TensorEntry> list;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    list.push_back({name, dtype, std::move(shape)});
  };
  const auto linear = [&](const std::string& name, int64_t out, int64_t in, bool bias) {
    add(name + ".weight", {out, in});
    if (bias) add(name + ".bias", {out});
  };
  const auto norm = [&](const std::string& name) {
    add(name + ".weight", {m.hidden_size});
    if (m.norm == Norm::layernorm && m.bias) add(name + ".bias", {m.hidden_size});
  };
  const auto feed_forward = [&](const std::string& name, int64_t inner) {
    if (m.activation == Activation::swiglu) linear(name + ".gate", inner, m.hidden_size, m.bias);
    linear(name + ".up", inner, m.hidden_size, m.bias);
    linear(name + ".down", m.hidden_size, inner, m.bias);
  };
  const int64_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim;
  add("embedding.weight", {m.vocab_size, m.hidden_size});
  if (m.position == Position::learned) add("position_embedding.weight", {m.seq_length, m.hidden_size});
  for (int64_t i = 0; i < m.layers; ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    norm(layer + "attention_norm");
    linear(layer + "attention.query", q, m.hidden_size, m.qkv_bias);
    linear(layer + "attention.key", kv, m.hidden_size, m.qkv_bias);
    linear(layer + "attention.value", kv, m.hidden_size, m.qkv_bias);
    if (m.qk_norm) add(layer + "attention.query_norm.weight", {m.head_dim});
    if (m.qk_norm) add(layer + "attention.key_norm.weight", {m.head_dim});
    linear(layer + "attention.output", m.hidden_size, q, m.bias);
    norm(layer + "mlp_norm");
    if (!m.moe || (i + 1) % m.moe->every != 0) {
      feed_forward(layer + "mlp", m.ffn_hidden_size);
      continue;
    }
    add(layer + "moe.router.weight", {m.moe->experts, m.hidden_size});
    if (m.moe->balance == config::MoeBalance::bias) add(layer + "moe.router.balance_bias", {m.moe->experts});
    for (int64_t j = 0; j < m.moe->experts; ++j)
      feed_forward(layer + "moe.experts." + std::to_string(j), m.moe->ffn_hidden_size);
    for (int64_t j = 0; j < m.moe->shared_experts; ++j)
      feed_forward(layer + "moe.shared." + std::to_string(j), m.moe->ffn_hidden_size);
  }
  norm("final_norm");
  if (!m.tie_embeddings) add("output.weight", {m.vocab_size, m.hidden_size});
  return list;
}

// Every element of every parameter has a value of its own: 1000 * the parameter's place in the list + its index.
class Values {
 public:
  explicit Values(const std::vector<TensorEntry>& parameters) {
    for (const TensorEntry& parameter : parameters) {
      std::vector<float>& values = values_[parameter.name];
      values.resize(static_cast<size_t>(elements_of(parameter)));
      std::iota(values.begin(), values.end(), 1000.0F * static_cast<float>(values_.size()));
    }
  }
  Tensor operator()(const TensorEntry& parameter) {
    const Shape shape =
        parameter.shape.size() == 1 ? Shape{parameter.shape[0]} : Shape{parameter.shape[0], parameter.shape[1]};
    return {values_.at(parameter.name).data(), DType::fp32, shape};
  }
  float at(const std::string& name, int64_t index) const { return values_.at(name).at(static_cast<size_t>(index)); }

 private:
  std::map<std::string, std::vector<float>> values_;
};

std::vector<float> floats(const SafetensorsReader& reader, const std::string& name) {
  const auto data = reader.data(name);
  std::vector<float> values(data.size() / sizeof(float));
  std::memcpy(values.data(), data.data(), data.size());
  return values;
}

std::vector<std::string> names_of(const config::Model& model) {
  std::vector<std::string> names;
  for (const HuggingFaceTensor& tensor : hugging_face_tensors(model, parameters_of(model)))
    names.push_back(tensor.entry.name);
  return names;
}

TEST_CASE("a model is stored under the architecture that computes it, else under ours", "[quick][hugging_face]") {
  CHECK(architecture_of(gpt2()) == Architecture::gpt2);
  CHECK(architecture_of(llama()) == Architecture::llama);

  const auto changed = [](config::Model model, auto change) {
    change(model);
    return architecture_of(model);
  };
  using M = config::Model;
  CHECK(changed(llama(), [](M& m) { m.qkv_bias = true; }) == Architecture::qwen2);
  CHECK(changed(llama(), [](M& m) { m.qk_norm = true; }) == Architecture::qwen3);
  CHECK(changed(llama(), [](M& m) { m.tie_embeddings = true; }) == Architecture::llama);
  CHECK(changed(llama(), [](M& m) { m.head_dim = 8; }) == Architecture::llama);
  CHECK(changed(llama(), [](M& m) { m.qkv_bias = m.qk_norm = true; }) == Architecture::quintet);
  CHECK(changed(llama(), [](M& m) {
          m.qkv_bias = true;
          m.head_dim = 8;
        }) == Architecture::quintet);
  CHECK(changed(llama(), [](M& m) { m.bias = true; }) == Architecture::quintet);
  CHECK(changed(llama(), [](M& m) { m.activation = Activation::gelu; }) == Architecture::quintet);
  CHECK(changed(llama(), [](M& m) { m.position = Position::none; }) == Architecture::quintet);
  CHECK(changed(gpt2(), [](M& m) { m.moe = mixtral().moe; }) == Architecture::quintet);
  CHECK(changed(gpt2(), [](M& m) { m.tie_embeddings = false; }) == Architecture::quintet);
  CHECK(changed(gpt2(), [](M& m) { m.qkv_bias = false; }) == Architecture::quintet);
  CHECK(changed(gpt2(), [](M& m) { m.kv_heads = 1; }) == Architecture::quintet);
  CHECK(changed(gpt2(), [](M& m) { m.head_dim = 4; }) == Architecture::quintet);
  CHECK(changed(gpt2(), [](M& m) { m.activation = Activation::gelu_exact; }) == Architecture::quintet);
  CHECK(changed(gpt2(), [](M& m) { m.norm = Norm::rmsnorm; }) == Architecture::quintet);
  CHECK(changed(gpt2(), [](M& m) { m.qk_norm = true; }) == Architecture::quintet);
}

TEST_CASE("a Mixtral is one that transformers computes", "[quick][hugging_face][moe]") {
  CHECK(architecture_of(mixtral()) == Architecture::mixtral);
  const auto changed = [](auto change) {
    config::Model model = mixtral();
    change(model);
    return architecture_of(model);
  };
  using M = config::Model;
  CHECK(changed([](M& m) { m.moe->balance = config::MoeBalance::none; }) == Architecture::mixtral);
  CHECK(changed([](M& m) { m.tie_embeddings = true; }) == Architecture::mixtral);
  CHECK(changed([](M& m) { m.moe->balance = config::MoeBalance::bias; }) == Architecture::quintet);
  CHECK(changed([](M& m) { m.moe->every = 2; }) == Architecture::quintet);
  CHECK(changed([](M& m) { m.moe->shared_experts = 1; }) == Architecture::quintet);
  CHECK(changed([](M& m) { m.moe->normalize_top_k = false; }) == Architecture::quintet);
  CHECK(changed([](M& m) { m.moe->routing = config::Routing::round_robin; }) == Architecture::quintet);
  CHECK(changed([](M& m) { m.moe->capacity_factor = 2; }) == Architecture::quintet);
  CHECK(changed([](M& m) { m.qkv_bias = true; }) == Architecture::quintet);
  CHECK(changed([](M& m) { m.qk_norm = true; }) == Architecture::quintet);
  CHECK(changed([](M& m) { m.bias = true; }) == Architecture::quintet);
  CHECK(changed([](M& m) { m.activation = Activation::gelu; }) == Architecture::quintet);
}

TEST_CASE("GPT-2 is stored with fused queries, keys and values as [in, out]", "[quick][hugging_face]") {
  const config::Model model = gpt2();
  const auto parameters = parameters_of(model);
  Values values(parameters);
  const TemporaryFolder folder;
  write_hugging_face(folder / "step", model, parameters, std::ref(values));
  const SafetensorsReader reader(folder / "step/model.safetensors");
  CHECK(reader.header().metadata.at("format") == "pt");
  CHECK(reader.header().tensors.size() == 4 + 12 * 2);

  const std::string ours = "layers.1.", theirs = "transformer.h.1.";
  CHECK(reader.find(theirs + "attn.c_attn.weight").shape == std::vector<int64_t>{4, 12});
  CHECK(reader.find(theirs + "attn.c_attn.bias").shape == std::vector<int64_t>{12});
  const auto fused = floats(reader, theirs + "attn.c_attn.weight");
  const auto fused_bias = floats(reader, theirs + "attn.c_attn.bias");
  const char* parts[] = {"query", "key", "value"};
  for (int part = 0; part < 3; ++part) {
    const std::string name = ours + "attention." + parts[part];
    for (int out = 0; out < 4; ++out) {
      CHECK(fused_bias[static_cast<size_t>(part * 4 + out)] == values.at(name + ".bias", out));
      for (int in = 0; in < 4; ++in)
        CHECK(fused[static_cast<size_t>(in * 12 + part * 4 + out)] == values.at(name + ".weight", out * 4 + in));
    }
  }
  CHECK(reader.find(theirs + "mlp.c_fc.weight").shape == std::vector<int64_t>{4, 12});
  CHECK(floats(reader, theirs + "mlp.c_fc.weight")[1 * 12 + 7] == values.at(ours + "mlp.up.weight", 7 * 4 + 1));
  CHECK(reader.find(theirs + "mlp.c_proj.weight").shape == std::vector<int64_t>{12, 4});
  CHECK(floats(reader, theirs + "mlp.c_proj.weight")[5 * 4 + 2] == values.at(ours + "mlp.down.weight", 2 * 12 + 5));
  CHECK(floats(reader, theirs + "attn.c_proj.weight")[3 * 4 + 1] == values.at(ours + "attention.output.weight", 7));
  CHECK(floats(reader, theirs + "ln_1.bias")[3] == values.at(ours + "attention_norm.bias", 3));
  CHECK(floats(reader, theirs + "ln_2.weight")[0] == values.at(ours + "mlp_norm.weight", 0));
  CHECK(floats(reader, "transformer.wte.weight")[39] == values.at("embedding.weight", 39));
  CHECK(floats(reader, "transformer.wpe.weight")[5] == values.at("position_embedding.weight", 5));
  CHECK(floats(reader, "transformer.ln_f.bias")[1] == values.at("final_norm.bias", 1));

  const auto json = nlohmann::json::parse(read_whole(folder / "step/config.json"));
  CHECK(json["architectures"] == nlohmann::json::array({"GPT2LMHeadModel"}));
  CHECK(json["model_type"] == "gpt2");
  CHECK(json["activation_function"] == "gelu_new");
  CHECK(json["n_inner"] == 12);
  CHECK(json["n_positions"] == 6);
  CHECK(json["layer_norm_epsilon"] == 1e-5);
  CHECK(json["tie_word_embeddings"] == true);
  CHECK(json["torch_dtype"] == "float32");
}

TEST_CASE("the fused order does not hang on the order of the parameters", "[quick][hugging_face]") {
  auto parameters = parameters_of(gpt2());
  std::reverse(parameters.begin(), parameters.end());
  for (const HuggingFaceTensor& tensor : hugging_face_tensors(gpt2(), parameters)) {
    if (tensor.entry.name != "transformer.h.0.attn.c_attn.bias") continue;
    REQUIRE(tensor.sources.size() == 3);
    CHECK(tensor.sources[0].name == "layers.0.attention.query.bias");
    CHECK(tensor.sources[2].name == "layers.0.attention.value.bias");
    return;
  }
  FAIL("no fused bias");
}

TEST_CASE("Llama, Qwen2 and Qwen3 are stored under their names, untransposed", "[quick][hugging_face]") {
  config::Model model = llama();
  model.layers = 1;
  const std::vector<std::string> expected = {"model.embed_tokens.weight",
                                             "model.layers.0.input_layernorm.weight",
                                             "model.layers.0.self_attn.q_proj.weight",
                                             "model.layers.0.self_attn.k_proj.weight",
                                             "model.layers.0.self_attn.v_proj.weight",
                                             "model.layers.0.self_attn.o_proj.weight",
                                             "model.layers.0.post_attention_layernorm.weight",
                                             "model.layers.0.mlp.gate_proj.weight",
                                             "model.layers.0.mlp.up_proj.weight",
                                             "model.layers.0.mlp.down_proj.weight",
                                             "model.norm.weight",
                                             "lm_head.weight"};
  CHECK(names_of(model) == expected);

  config::Model tied = model;
  tied.tie_embeddings = true;
  CHECK(names_of(tied).back() == "model.norm.weight");
  config::Model qwen2 = model;
  qwen2.qkv_bias = true;
  CHECK(names_of(qwen2)[3] == "model.layers.0.self_attn.q_proj.bias");
  config::Model qwen3 = model;
  qwen3.qk_norm = true;
  CHECK(names_of(qwen3)[5] == "model.layers.0.self_attn.q_norm.weight");
  CHECK(names_of(qwen3)[6] == "model.layers.0.self_attn.k_norm.weight");

  const auto parameters = parameters_of(model);
  Values values(parameters);
  const TemporaryFolder folder;
  write_hugging_face(folder / "step", model, parameters, std::ref(values));
  const SafetensorsReader reader(folder / "step/model.safetensors");
  CHECK(reader.find("model.layers.0.self_attn.k_proj.weight").shape == std::vector<int64_t>{2, 4});
  CHECK(floats(reader, "model.layers.0.mlp.down_proj.weight")[13] == values.at("layers.0.mlp.down.weight", 13));
}

TEST_CASE("Mixtral's experts are stored one by one as w1, w3 and w2", "[quick][hugging_face][moe]") {
  config::Model model = mixtral();
  model.moe->experts = 11;
  model.layers = 1;
  const std::vector<std::string> names = names_of(model);
  REQUIRE(names.size() == 2 + 6 + 1 + 11 * 3 + 1);
  CHECK(names[6] == "model.layers.0.post_attention_layernorm.weight");
  CHECK(names[7] == "model.layers.0.block_sparse_moe.gate.weight");

  const auto parameters = parameters_of(model);
  Values values(parameters);
  const TemporaryFolder folder;
  write_hugging_face(folder / "step", model, parameters, std::ref(values));
  const SafetensorsReader reader(folder / "step/model.safetensors");
  const std::string theirs = "model.layers.0.block_sparse_moe.", ours = "layers.0.moe.";
  CHECK(floats(reader, theirs + "gate.weight")[9] == values.at(ours + "router.weight", 9));
  CHECK(reader.find(theirs + "experts.10.w1.weight").shape == std::vector<int64_t>{5, 4});
  CHECK(reader.find(theirs + "experts.1.w2.weight").shape == std::vector<int64_t>{4, 5});
  for (const char* expert : {"0", "1", "10"}) {
    const std::string theirs_of = fmt::format("{}experts.{}.", theirs, expert);
    const std::string ours_of = fmt::format("{}experts.{}.", ours, expert);
    CHECK(floats(reader, theirs_of + "w1.weight")[13] == values.at(ours_of + "gate.weight", 13));
    CHECK(floats(reader, theirs_of + "w3.weight")[13] == values.at(ours_of + "up.weight", 13));
    CHECK(floats(reader, theirs_of + "w2.weight")[13] == values.at(ours_of + "down.weight", 13));
  }

  const auto json = nlohmann::json::parse(read_whole(folder / "step/config.json"));
  CHECK(json["architectures"] == nlohmann::json::array({"MixtralForCausalLM"}));
  CHECK(json["model_type"] == "mixtral");
  CHECK(json["num_local_experts"] == 11);
  CHECK(json["num_experts_per_tok"] == 2);
  CHECK(json["intermediate_size"] == 5);
  CHECK(json["router_aux_loss_coef"] == 0.02);
  CHECK(json["sliding_window"] == nullptr);
}

TEST_CASE("other models with experts keep our names and say what their experts are", "[quick][hugging_face][moe]") {
  config::Model model = mixtral();
  model.layers = 2;
  model.moe->every = 2;
  model.moe->shared_experts = 1;
  model.moe->capacity_factor = 1.5;
  model.moe->balance = config::MoeBalance::bias;
  const std::vector<std::string> names = names_of(model);
  for (const char* name : {"layers.0.mlp.up.weight", "layers.1.moe.router.weight", "layers.1.moe.router.balance_bias",
                           "layers.1.moe.experts.2.gate.weight", "layers.1.moe.shared.0.down.weight"}) {
    INFO(name);
    CHECK(std::count(names.begin(), names.end(), name) == 1);
  }
  const auto moe = nlohmann::json::parse(hugging_face_config(model, DType::fp32))["moe"];
  CHECK(moe["experts"] == 3);
  CHECK(moe["top_k"] == 2);
  CHECK(moe["ffn_hidden_size"] == 5);
  CHECK(moe["every"] == 2);
  CHECK(moe["shared_experts"] == 1);
  CHECK(moe["normalize_top_k"] == true);
  CHECK(moe["routing"] == "learned");
  CHECK(moe["balance"] == "bias");
  CHECK(moe["capacity_factor"] == 1.5);
}

TEST_CASE("the config of a Llama with scaled rotation names every factor", "[quick][hugging_face]") {
  config::Model model = llama();
  model.rope_scaling = config::RopeScaling{config::RopeScalingKind::llama3, 8, 1, 4, 8192};
  model.rope_theta = 500000;
  const auto json = nlohmann::json::parse(hugging_face_config(model, DType::fp64));
  CHECK(json["architectures"] == nlohmann::json::array({"LlamaForCausalLM"}));
  CHECK(json["rope_theta"] == 500000);
  CHECK(json["rope_scaling"]["rope_type"] == "llama3");
  CHECK(json["rope_scaling"]["original_max_position_embeddings"] == 8192);
  CHECK(json["num_key_value_heads"] == 1);
  CHECK(json["tie_word_embeddings"] == false);
  CHECK(json["torch_dtype"] == "float64");

  model.qk_norm = true;
  CHECK(nlohmann::json::parse(hugging_face_config(model, DType::fp32))["architectures"][0] == "Qwen3ForCausalLM");
  model.position = Position::none;
  const auto ours = nlohmann::json::parse(hugging_face_config(model, DType::fp32));
  CHECK(ours["architectures"] == nlohmann::json::array({"Quintet"}));
  CHECK(ours["position"] == "none");
  CHECK(names_of(model)[1] == "layers.0.attention_norm.weight");
}

TEST_CASE("a dump that fails half-way leaves no folder, one that succeeds replaces the older",
          "[quick][hugging_face]") {
  const config::Model model = llama();
  const auto parameters = parameters_of(model);
  Values values(parameters);
  const TemporaryFolder folder;
  int fetched = 0;
  const auto failing = [&](const TensorEntry& parameter) {
    if (++fetched == 3) fail(ExitCode::communication, "a peer is gone");
    return values(parameter);
  };
  CHECK_THROWS_AS(write_hugging_face(folder / "weights/step", model, parameters, failing), Error);
  CHECK(std::filesystem::is_empty(folder / "weights"));

  write_hugging_face(folder / "weights/step/", model, parameters, std::ref(values));
  write_file(folder / "weights/step/old", "old");
  write_hugging_face(folder / "weights/step", model, parameters, std::ref(values));
  CHECK(std::filesystem::exists(folder / "weights/step/model.safetensors"));
  CHECK(!std::filesystem::exists(folder / "weights/step/old"));
  CHECK(!std::filesystem::exists(folder / "weights/step.tmp"));
}

}  // namespace
}  // namespace quintet::checkpoint
