#include "lib/checkpoint/hugging_face.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lib/base/error.h"
#include "lib/base/integers.h"
#include "lib/config/enums.h"

namespace quintet::checkpoint {
namespace {

using Json = nlohmann::ordered_json;
using config::Activation;
using config::Norm;
using config::Position;

// A module of ours, `layers.I.` left out, and what transformers calls it; # stands for the number of an expert. Several
// modules under one name are concatenated in the order of this table.
struct ModuleName {
  std::string_view ours, theirs;
  bool transposed = false;
};

struct NameTable {
  std::string_view layer_prefix;  // stands before the layer's number
  std::span<const ModuleName> modules;
};

constexpr ModuleName kGpt2Modules[] = {
    {"embedding", "transformer.wte"},
    {"position_embedding", "transformer.wpe"},
    {"attention_norm", "ln_1"},
    {"attention.query", "attn.c_attn", true},
    {"attention.key", "attn.c_attn", true},
    {"attention.value", "attn.c_attn", true},
    {"attention.output", "attn.c_proj", true},
    {"mlp_norm", "ln_2"},
    {"mlp.up", "mlp.c_fc", true},
    {"mlp.down", "mlp.c_proj", true},
    {"final_norm", "transformer.ln_f"},
};

constexpr ModuleName kLlamaModules[] = {
    {"embedding", "model.embed_tokens"},
    {"attention_norm", "input_layernorm"},
    {"attention.query", "self_attn.q_proj"},
    {"attention.key", "self_attn.k_proj"},
    {"attention.value", "self_attn.v_proj"},
    {"attention.output", "self_attn.o_proj"},
    {"attention.query_norm", "self_attn.q_norm"},
    {"attention.key_norm", "self_attn.k_norm"},
    {"mlp_norm", "post_attention_layernorm"},
    {"mlp.gate", "mlp.gate_proj"},
    {"mlp.up", "mlp.up_proj"},
    {"mlp.down", "mlp.down_proj"},
    {"moe.router", "block_sparse_moe.gate"},
    {"moe.experts.#.gate", "block_sparse_moe.experts.#.w1"},
    {"moe.experts.#.up", "block_sparse_moe.experts.#.w3"},
    {"moe.experts.#.down", "block_sparse_moe.experts.#.w2"},
    {"final_norm", "model.norm"},
    {"output", "lm_head"},
};

// Mixtral, Qwen2 and Qwen3 use Llama's names.
NameTable table_of(Architecture architecture) {
  if (architecture == Architecture::gpt2) return {"transformer.h.", kGpt2Modules};
  return {"model.layers.", kLlamaModules};
}

// "layers.3.moe.experts.7.up.weight" = {"3", "7", "moe.experts.#.up", ".weight"}; numbers that are not there are empty.
struct ParameterName {
  std::string_view layer, expert;
  std::string module;
  std::string_view kind;
};

ParameterName split(std::string_view name) {
  ParameterName parts;
  constexpr std::string_view kLayers = "layers.";
  if (name.substr(0, kLayers.size()) == kLayers) {
    name.remove_prefix(kLayers.size());
    const size_t dot = name.find('.');
    QUINTET_CHECK(dot != name.npos, "layers.{} is no parameter", name);
    parts.layer = name.substr(0, dot);
    name.remove_prefix(dot + 1);
  }
  const size_t dot = name.rfind('.');
  QUINTET_CHECK(dot != name.npos, "{} is no parameter", name);
  parts.module = name.substr(0, dot);
  parts.kind = name.substr(dot);
  constexpr std::string_view kExperts = "moe.experts.";
  if (name.substr(0, kExperts.size()) == kExperts) {
    parts.expert = name.substr(kExperts.size(), name.find('.', kExperts.size()) - kExperts.size());
    parts.module.replace(kExperts.size(), parts.expert.size(), "#");
  }
  return parts;
}

std::string with_number(std::string_view name, std::string_view number) {
  std::string numbered(name);
  const size_t place = numbered.find('#');
  return place == numbered.npos ? numbered : numbered.replace(place, 1, number);
}

size_t position_of(const NameTable& table, std::string_view module) {
  for (size_t i = 0; i < table.modules.size(); ++i)
    if (table.modules[i].ours == module) return i;
  QUINTET_CHECK(false, "{} has no name in Hugging Face's layout", module);
}

// Shape of the concatenation of the sources, transposed if asked for.
std::vector<int64_t> fused_shape(const HuggingFaceTensor& tensor) {
  std::vector<int64_t> shape = tensor.sources.front().shape;
  shape.front() = 0;
  for (const TensorEntry& source : tensor.sources) {
    QUINTET_CHECK(source.dtype == tensor.entry.dtype && source.shape.size() == shape.size() &&
                      (shape.size() == 1 || source.shape.back() == shape.back()),
                  "{} does not fit beside {}", source.name, tensor.sources.front().name);
    shape.front() += source.shape.front();
  }
  if (tensor.transposed) std::swap(shape.front(), shape.back());
  return shape;
}

// to[column, row] = from[row, column] of elements of N bytes; rows of `to` are `stride` elements apart. In tiles, so
// that both sides stay in cache.
template <size_t N>
void transpose(const std::byte* from, int64_t rows, int64_t columns, std::byte* to, int64_t stride) {
  constexpr int64_t kTile = 32;
  for (int64_t row0 = 0; row0 < rows; row0 += kTile)
    for (int64_t column0 = 0; column0 < columns; column0 += kTile)
      for (int64_t column = column0; column < std::min(column0 + kTile, columns); ++column)
        for (int64_t row = row0; row < std::min(row0 + kTile, rows); ++row)
          std::memcpy(to + (column * stride + row) * static_cast<int64_t>(N),
                      from + (row * columns + column) * static_cast<int64_t>(N), N);
}

void transpose(const Tensor& from, std::byte* to, int64_t stride) {
  const auto* data = static_cast<const std::byte*>(from.data());
  switch (size_of(from.dtype())) {
    case 8: return transpose<8>(data, from.size(0), from.size(1), to, stride);
    case 4: return transpose<4>(data, from.size(0), from.size(1), to, stride);
    case 2: return transpose<2>(data, from.size(0), from.size(1), to, stride);
    default: QUINTET_CHECK(false, "cannot transpose elements of {}", name_of(from.dtype()));
  }
}

std::span<const std::byte> bytes_of(const Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.data()), static_cast<size_t>(tensor.bytes())};
}

Tensor fetch_checked(const FetchTensor& fetch, const TensorEntry& parameter) {
  const Tensor tensor = fetch(parameter);
  bool fits = tensor.dtype() == parameter.dtype && tensor.shape().rank() == narrow<int>(parameter.shape.size());
  for (int i = 0; fits && i < tensor.shape().rank(); ++i)
    fits = tensor.size(i) == parameter.shape[static_cast<size_t>(i)];
  QUINTET_CHECK(fits, "{} was fetched as {} {}", parameter.name, name_of(tensor.dtype()), to_string(tensor.shape()));
  return tensor;
}

void write_tensor(SafetensorsWriter& writer, const HuggingFaceTensor& tensor, const FetchTensor& fetch,
                  std::vector<std::byte>& buffer) {
  if (!tensor.transposed) {
    for (const TensorEntry& source : tensor.sources)
      writer.append(tensor.entry.name, bytes_of(fetch_checked(fetch, source)));
    return;
  }
  buffer.resize(static_cast<size_t>(bytes_of(tensor.entry)));
  const int64_t outputs = tensor.entry.shape.back();
  int64_t first = 0;
  for (const TensorEntry& source : tensor.sources) {
    transpose(fetch_checked(fetch, source), buffer.data() + first * size_of(source.dtype), outputs);
    first += source.shape.front();
  }
  writer.append(tensor.entry.name, buffer);
}

const char* torch_name(DType dtype) {
  switch (dtype) {
    case DType::fp64: return "float64";
    case DType::fp32: return "float32";
    case DType::bf16: return "bfloat16";
    default: QUINTET_CHECK(false, "weights are never {}", name_of(dtype));
  }
}

Json gpt2_config(const config::Model& model) {
  return {{"architectures", Json::array({"GPT2LMHeadModel"})},
          {"model_type", "gpt2"},
          {"vocab_size", model.vocab_size},
          {"n_positions", model.seq_length},
          {"n_embd", model.hidden_size},
          {"n_layer", model.layers},
          {"n_head", model.heads},
          {"n_inner", model.ffn_hidden_size},
          {"activation_function", "gelu_new"},
          {"layer_norm_epsilon", model.norm_epsilon},
          {"embd_pdrop", model.dropout},
          {"resid_pdrop", model.dropout},
          {"attn_pdrop", 0.0}};
}

Json llama_rope_scaling(const config::Model& model) {
  if (!model.rope_scaling) return nullptr;
  const config::RopeScaling& scaling = *model.rope_scaling;
  return {{"rope_type", config::name_of(scaling.kind)},
          {"factor", scaling.factor},
          {"low_freq_factor", scaling.low_freq_factor},
          {"high_freq_factor", scaling.high_freq_factor},
          {"original_max_position_embeddings", scaling.original_length}};
}

Json llama_config(const config::Model& model, Architecture architecture) {
  Json json;
  switch (architecture) {
    case Architecture::qwen2:
      json = {{"architectures", Json::array({"Qwen2ForCausalLM"})}, {"model_type", "qwen2"}};
      break;
    case Architecture::qwen3:
      json = {{"architectures", Json::array({"Qwen3ForCausalLM"})}, {"model_type", "qwen3"}, {"attention_bias", false}};
      break;
    case Architecture::mixtral:
      json = {{"architectures", Json::array({"MixtralForCausalLM"})},
              {"model_type", "mixtral"},
              {"num_local_experts", model.moe->experts},
              {"num_experts_per_tok", model.moe->top_k},
              {"router_aux_loss_coef",
               model.moe->balance == config::MoeBalance::aux_loss ? model.moe->aux_loss_weight : 0.0},
              {"router_jitter_noise", 0.0},
              {"output_router_logits", false},
              {"sliding_window", nullptr}};
      break;
    default:
      json = {{"architectures", Json::array({"LlamaForCausalLM"})},
              {"model_type", "llama"},
              {"attention_bias", false},
              {"mlp_bias", false}};
  }
  json.update({{"vocab_size", model.vocab_size},
               {"max_position_embeddings", model.seq_length},
               {"hidden_size", model.hidden_size},
               {"intermediate_size", model.moe ? model.moe->ffn_hidden_size : model.ffn_hidden_size},
               {"num_hidden_layers", model.layers},
               {"num_attention_heads", model.heads},
               {"num_key_value_heads", model.kv_heads},
               {"head_dim", model.head_dim},
               {"hidden_act", "silu"},
               {"rms_norm_eps", model.norm_epsilon},
               {"rope_theta", model.rope_theta},
               {"rope_scaling", llama_rope_scaling(model)},
               {"attention_dropout", 0.0}});
  return json;
}

Json quintet_experts(const config::Moe& moe) {
  return {{"experts", moe.experts},
          {"top_k", moe.top_k},
          {"ffn_hidden_size", moe.ffn_hidden_size},
          {"every", moe.every},
          {"shared_experts", moe.shared_experts},
          {"normalize_top_k", moe.normalize_top_k},
          {"routing", config::name_of(moe.routing)},
          {"balance", config::name_of(moe.balance)},
          {"capacity_factor", moe.capacity_factor ? Json(*moe.capacity_factor) : Json(nullptr)}};
}

// Under SPEC's own keys.
Json quintet_config(const config::Model& model) {
  Json scaling = nullptr;
  if (model.rope_scaling)
    scaling = {{"kind", config::name_of(model.rope_scaling->kind)},
               {"factor", model.rope_scaling->factor},
               {"low_freq_factor", model.rope_scaling->low_freq_factor},
               {"high_freq_factor", model.rope_scaling->high_freq_factor},
               {"original_length", model.rope_scaling->original_length}};
  return {{"architectures", Json::array({"Quintet"})},
          {"model_type", "quintet"},
          {"seq_length", model.seq_length},
          {"vocab_size", model.vocab_size},
          {"layers", model.layers},
          {"hidden_size", model.hidden_size},
          {"heads", model.heads},
          {"kv_heads", model.kv_heads},
          {"head_dim", model.head_dim},
          {"ffn_hidden_size", model.ffn_hidden_size},
          {"norm", config::name_of(model.norm)},
          {"norm_epsilon", model.norm_epsilon},
          {"activation", config::name_of(model.activation)},
          {"position", config::name_of(model.position)},
          {"rope_theta", model.rope_theta},
          {"rope_scaling", scaling},
          {"qk_norm", model.qk_norm},
          {"bias", model.bias},
          {"qkv_bias", model.qkv_bias},
          {"tie_embeddings", model.tie_embeddings},
          {"moe", model.moe ? quintet_experts(*model.moe) : Json(nullptr)}};
}

bool has_mixtral_experts(const config::Model& model) {
  const config::Moe& moe = *model.moe;
  return moe.every == 1 && moe.shared_experts == 0 && moe.normalize_top_k && moe.routing == config::Routing::learned &&
         moe.balance != config::MoeBalance::bias && !moe.capacity_factor;
}

}  // namespace

Architecture architecture_of(const config::Model& model) {
  const bool heads_fill_hidden = model.heads * model.head_dim == model.hidden_size;
  const bool gpt2 = model.norm == Norm::layernorm && model.activation == Activation::gelu &&
                    model.position == Position::learned && model.bias && model.qkv_bias && !model.qk_norm &&
                    model.tie_embeddings && model.kv_heads == model.heads && heads_fill_hidden;
  if (gpt2 && !model.moe) return Architecture::gpt2;
  const bool llama_like = model.norm == Norm::rmsnorm && model.activation == Activation::swiglu &&
                          model.position == Position::rope && !model.bias;
  if (!llama_like) return Architecture::quintet;
  if (model.moe) {
    const bool mixtral = !model.qkv_bias && !model.qk_norm && has_mixtral_experts(model);
    return mixtral ? Architecture::mixtral : Architecture::quintet;
  }
  if (!model.qkv_bias) return model.qk_norm ? Architecture::qwen3 : Architecture::llama;
  return !model.qk_norm && heads_fill_hidden ? Architecture::qwen2 : Architecture::quintet;
}

std::string hugging_face_config(const config::Model& model, DType dtype) {
  const Architecture architecture = architecture_of(model);
  Json json;
  switch (architecture) {
    case Architecture::gpt2: json = gpt2_config(model); break;
    case Architecture::quintet: json = quintet_config(model); break;
    default: json = llama_config(model, architecture);
  }
  if (architecture != Architecture::quintet) {
    json["initializer_range"] = model.init_std;
    json["tie_word_embeddings"] = model.tie_embeddings;
    // transformers' own defaults name tokens of its vocabularies.
    json["bos_token_id"] = nullptr;
    json["eos_token_id"] = nullptr;
  }
  json["torch_dtype"] = torch_name(dtype);
  return json.dump(2) + "\n";
}

std::vector<HuggingFaceTensor> hugging_face_tensors(const config::Model& model,
                                                    std::span<const TensorEntry> parameters) {
  const Architecture architecture = architecture_of(model);
  const NameTable table = table_of(architecture);
  std::vector<HuggingFaceTensor> tensors;
  std::map<std::string, size_t> index;
  for (const TensorEntry& parameter : parameters) {
    QUINTET_CHECK(!parameter.shape.empty(), "{} is a scalar", parameter.name);
    HuggingFaceTensor tensor{{parameter.name, parameter.dtype, {}}, {}, false};
    if (architecture != Architecture::quintet) {
      const ParameterName name = split(parameter.name);
      const ModuleName& module = table.modules[position_of(table, name.module)];
      const std::string layer = name.layer.empty() ? "" : fmt::format("{}{}.", table.layer_prefix, name.layer);
      tensor.entry.name = fmt::format("{}{}{}", layer, with_number(module.theirs, name.expert), name.kind);
      tensor.transposed = module.transposed && parameter.shape.size() == 2;
    }
    const auto [found, is_new] = index.emplace(tensor.entry.name, tensors.size());
    if (is_new) tensors.push_back(std::move(tensor));
    tensors[found->second].sources.push_back(parameter);
  }
  for (HuggingFaceTensor& tensor : tensors) {
    if (tensor.sources.size() > 1) {
      std::sort(tensor.sources.begin(), tensor.sources.end(), [&](const TensorEntry& a, const TensorEntry& b) {
        return position_of(table, split(a.name).module) < position_of(table, split(b.name).module);
      });
    }
    tensor.entry.shape = fused_shape(tensor);
  }
  return tensors;
}

void write_hugging_face(const std::filesystem::path& folder, const config::Model& model,
                        std::span<const TensorEntry> parameters, const FetchTensor& fetch) {
  QUINTET_CHECK(!parameters.empty());
  const std::vector<HuggingFaceTensor> tensors = hugging_face_tensors(model, parameters);
  std::vector<TensorEntry> entries;
  for (const HuggingFaceTensor& tensor : tensors) entries.push_back(tensor.entry);

  AtomicFolder output(folder);
  write_file(output.temporary() / "config.json", hugging_face_config(model, parameters.front().dtype));
  // transformers refuses a file that does not name its framework.
  SafetensorsWriter writer(output.temporary() / "model.safetensors", std::move(entries), {{"format", "pt"}});
  std::vector<std::byte> buffer;
  for (const HuggingFaceTensor& tensor : tensors) write_tensor(writer, tensor, fetch, buffer);
  writer.finish();
  output.commit();
}

}  // namespace quintet::checkpoint
