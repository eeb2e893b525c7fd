// Models as Hugging Face transformers stores them: a folder of config.json and model.safetensors.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lib/checkpoint/safetensors.h"
#include "lib/config/config.h"
#include "lib/device/tensor.h"

namespace quintet::checkpoint {

// What transformers would call a model. `quintet` fits none of them: it keeps SPEC's own names.
enum class Architecture { gpt2, llama, mixtral, qwen2, qwen3, quintet };

Architecture architecture_of(const config::Model& model);

// The text of config.json for weights stored as `dtype`.
std::string hugging_face_config(const config::Model& model, DType dtype);

// A tensor of model.safetensors and the parameters (under SPEC section 6's names) that it is made of, in the order of
// their concatenation along the output dimension. GPT-2 keeps products as [in, out]: transposed.
struct HuggingFaceTensor {
  TensorEntry entry;
  std::vector<TensorEntry> sources;
  bool transposed = false;
};

// `parameters`: the logical tensors of the model, unsharded and unpadded, all trained ones of one dtype. The order of
// the result is that of the first source of each.
std::vector<HuggingFaceTensor> hugging_face_tensors(const config::Model& model,
                                                    std::span<const TensorEntry> parameters);

// The values of one whole parameter in host memory, valid until the next call.
using FetchTensor = std::function<Tensor(const TensorEntry& parameter)>;

// Writes the folder, whole or not at all; an older one of that name is replaced. `fetch` is called once for each source
// in the order of hugging_face_tensors(), so ranks that help to gather follow the same list. Holds one fused tensor.
// IO errors: Error (ExitCode::checkpoint).
void write_hugging_face(const std::filesystem::path& folder, const config::Model& model,
                        std::span<const TensorEntry> parameters, const FetchTensor& fetch);

}  // namespace quintet::checkpoint
