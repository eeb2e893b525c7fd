"""From the tensors of a Hugging Face folder to parameters under SPEC section 6's names."""

import json
import re
from pathlib import Path

import safetensors_io

_GPT2 = {
    "transformer.wte": "embedding",
    "transformer.wpe": "position_embedding",
    "transformer.ln_f": "final_norm",
    "ln_1": "attention_norm",
    "ln_2": "mlp_norm",
    "attn.c_proj": "attention.output",
    "mlp.c_fc": "mlp.up",
    "mlp.c_proj": "mlp.down",
}
_LLAMA = {
    "model.embed_tokens": "embedding",
    "model.norm": "final_norm",
    "lm_head": "output",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "mlp_norm",
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.o_proj": "attention.output",
    "self_attn.q_norm": "attention.query_norm",
    "self_attn.k_norm": "attention.key_norm",
    "mlp.gate_proj": "mlp.gate",
    "mlp.up_proj": "mlp.up",
    "mlp.down_proj": "mlp.down",
    "block_sparse_moe.gate": "moe.router",
}
_MIXTRAL_EXPERT = {"w1": "gate", "w3": "up", "w2": "down"}
_LAYER = {"GPT2LMHeadModel": r"transformer\.h\.(\d+)\.(.*)"}


def expected_architecture(model):
    """The class of transformers that computes this model (the `model` section of a config)."""
    fills = model["heads"] * model["head_dim"] == model["hidden_size"]
    kind = (model["norm"], model["activation"], model["position"])
    if kind == ("layernorm", "gelu", "learned"):
        plain = model["bias"] and model["qkv_bias"] and model["tie_embeddings"] and not model["qk_norm"]
        if plain and fills and model["kv_heads"] == model["heads"] and not model.get("moe"):
            return "GPT2LMHeadModel"
    if kind == ("rmsnorm", "swiglu", "rope") and not model["bias"]:
        if model.get("moe"):
            is_mixtral = not model["qkv_bias"] and not model["qk_norm"] and _are_mixtral_experts(model["moe"])
            return "MixtralForCausalLM" if is_mixtral else "Quintet"
        if not model["qkv_bias"]:
            return "Qwen3ForCausalLM" if model["qk_norm"] else "LlamaForCausalLM"
        if not model["qk_norm"] and fills:
            return "Qwen2ForCausalLM"
    return "Quintet"


def _are_mixtral_experts(moe):
    plain = moe["every"] == 1 and moe["shared_experts"] == 0 and moe["capacity_factor"] is None
    return plain and moe["normalize_top_k"] and moe["routing"] == "learned" and moe["balance"] != "bias"


def load(folder, model):
    """The parameters {name: fp64 tensor} of a folder that holds `model`; its config.json must agree."""
    config = json.loads((Path(folder) / "config.json").read_text())
    (architecture,) = config["architectures"]
    if architecture != expected_architecture(model):
        raise SystemExit(f"{folder}: architecture {architecture}, expected {expected_architecture(model)}")
    _check_sizes(folder, config, model)
    stored = safetensors_io.read(Path(folder) / "model.safetensors")
    if architecture == "Quintet":
        return stored
    parameters = {}
    for name, tensor in stored.items():
        _add(parameters, architecture, name, tensor)
    return parameters


def _check_sizes(folder, config, model):
    gpt2 = {"n_embd": "hidden_size", "n_head": "heads", "n_layer": "layers", "n_inner": "ffn_hidden_size",
            "n_positions": "seq_length", "vocab_size": "vocab_size"}
    llama = {"hidden_size": "hidden_size", "num_attention_heads": "heads", "num_key_value_heads": "kv_heads",
             "num_hidden_layers": "layers", "intermediate_size": "ffn_hidden_size", "head_dim": "head_dim",
             "rope_theta": "rope_theta", "tie_word_embeddings": "tie_embeddings", "vocab_size": "vocab_size"}
    ours = {key: key for key in ("hidden_size", "heads", "kv_heads", "layers", "activation", "position")}
    moe = model.get("moe")
    if config["model_type"] == "mixtral":
        del llama["intermediate_size"]
        experts = {"num_local_experts": moe["experts"], "num_experts_per_tok": moe["top_k"],
                   "intermediate_size": moe["ffn_hidden_size"]}
        for key, value in experts.items():
            if config[key] != value:
                raise SystemExit(f"{folder}/config.json: {key} is {config[key]}, not {value}")
    elif moe and any(moe[key] != value for key, value in config["moe"].items()):
        raise SystemExit(f"{folder}/config.json: moe is {config['moe']}, model.moe is {moe}")
    for theirs, key in {"gpt2": gpt2, "quintet": ours}.get(config["model_type"], llama).items():
        if config[theirs] != model[key]:
            raise SystemExit(f"{folder}/config.json: {theirs} is {config[theirs]}, model.{key} is {model[key]}")


def _add(parameters, architecture, name, tensor):
    prefix = ""
    layer = re.fullmatch(_LAYER.get(architecture, r"model\.layers\.(\d+)\.(.*)"), name)
    if layer:
        prefix, name = f"layers.{layer[1]}.", layer[2]
    module, kind = name.rsplit(".", 1)
    expert = re.fullmatch(r"block_sparse_moe\.experts\.(\d+)\.(w\d)", module)
    if expert:
        parameters[f"{prefix}moe.experts.{expert[1]}.{_MIXTRAL_EXPERT[expert[2]]}.{kind}"] = tensor
        return
    if architecture != "GPT2LMHeadModel":
        parameters[f"{prefix}{_LLAMA[module]}.{kind}"] = tensor
        return
    if layer and tensor.dim() == 2:
        tensor = tensor.t().contiguous()  # GPT-2 keeps products as [in, out]
    if module == "attn.c_attn":
        for part, values in zip(("query", "key", "value"), tensor.chunk(3)):
            parameters[f"{prefix}attention.{part}.{kind}"] = values.contiguous()
    else:
        parameters[f"{prefix}{_GPT2[module]}.{kind}"] = tensor
