"""The model from SPEC section 4's formulas, on a dictionary of parameters under section 6's names.

Shapes: B sequences, S positions, H hidden, N query heads, K key/value heads, D head_dim, V vocabulary, E experts.
"""

import math

import torch
import torch.nn.functional as F


class Model:
    """`model` is that section of a resolved config; rotation angles are rounded to `angle_dtype`."""

    def __init__(self, model, parameters, angle_dtype=torch.float64):
        self.model = model
        self.parameters = parameters
        self.routing = []  # of each MoE layer of the last forward
        if model["position"] == "rope":
            self.cos, self.sin = rotation_tables(model, angle_dtype)

    def logits(self, tokens):
        """tokens [B, S] -> [B, S, V]."""
        p, model = self.parameters, self.model
        self.routing = []
        x = p["embedding.weight"][tokens]
        if model["position"] == "learned":
            x = x + p["position_embedding.weight"][: tokens.shape[1]]
        for i in range(model["layers"]):
            x = x + self.attention(f"layers.{i}.attention", self.norm(f"layers.{i}.attention_norm", x))
            normed = self.norm(f"layers.{i}.mlp_norm", x)
            is_moe = model.get("moe") and (i + 1) % model["moe"]["every"] == 0
            x = x + (self.experts(f"layers.{i}.moe", normed) if is_moe else self.mlp(f"layers.{i}.mlp", normed))
        x = self.norm("final_norm", x)
        return x @ p["embedding.weight" if model["tie_embeddings"] else "output.weight"].t()

    def loss(self, inputs, targets):
        """Mean cross-entropy in nats over every target."""
        logits = self.logits(inputs)
        chosen = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        return (torch.logsumexp(logits, dim=-1) - chosen).mean()

    def linear(self, name, x):
        y = x @ self.parameters[f"{name}.weight"].t()
        bias = self.parameters.get(f"{name}.bias")
        return y if bias is None else y + bias

    def norm(self, name, x):
        weight, bias = self.parameters[f"{name}.weight"], self.parameters.get(f"{name}.bias")
        if self.model["norm"] == "rmsnorm":
            return rms_norm(x, weight, self.model["norm_epsilon"])
        centred = x - x.mean(-1, keepdim=True)
        variance = (centred * centred).mean(-1, keepdim=True)
        y = centred / torch.sqrt(variance + self.model["norm_epsilon"]) * weight
        return y if bias is None else y + bias

    def attention(self, name, x):
        model = self.model
        batch, positions, _ = x.shape
        heads, kv_heads, head_dim = model["heads"], model["kv_heads"], model["head_dim"]

        def split(part, count):  # [B, count, S, D]
            return self.linear(f"{name}.{part}", x).view(batch, positions, count, head_dim).transpose(1, 2)

        query, key, value = split("query", heads), split("key", kv_heads), split("value", kv_heads)
        if model["qk_norm"]:
            query = rms_norm(query, self.parameters[f"{name}.query_norm.weight"], model["norm_epsilon"])
            key = rms_norm(key, self.parameters[f"{name}.key_norm.weight"], model["norm_epsilon"])
        if model["position"] == "rope":
            query, key = self.rotate(query), self.rotate(key)
        kv_head = torch.tensor([q * kv_heads // heads for q in range(heads)])
        key, value = key[:, kv_head], value[:, kv_head]
        scores = query @ key.transpose(-1, -2) / math.sqrt(head_dim)
        future = torch.ones(positions, positions, dtype=torch.bool).triu(1)
        weights = torch.softmax(scores.masked_fill(future, -math.inf), dim=-1)
        mixed = (weights @ value).transpose(1, 2).reshape(batch, positions, heads * head_dim)
        return self.linear(f"{name}.output", mixed)

    def rotate(self, x):
        """x [.., S, D]: channel j turns with channel j + D/2."""
        first, second = x.chunk(2, dim=-1)
        cos, sin = self.cos[: x.shape[-2]], self.sin[: x.shape[-2]]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def mlp(self, name, x):
        up = self.linear(f"{name}.up", x)
        if self.model["activation"] == "swiglu":
            gate = self.linear(f"{name}.gate", x)
            return self.linear(f"{name}.down", gate * torch.sigmoid(gate) * up)
        return self.linear(f"{name}.down", ACTIVATIONS[self.model["activation"]](up))

    def experts(self, name, x):
        """A mixture of experts, token by token: every expert sees every row and most weights are zero."""
        moe = self.model["moe"]
        count, top_k, positions = moe["experts"], moe["top_k"], x.shape[1]
        logits = x @ self.parameters[f"{name}.router.weight"].t()  # [B, S, E]
        probabilities = torch.softmax(logits, dim=-1)
        scores = probabilities.detach()
        if moe["balance"] == "bias":
            scores = scores + self.parameters[f"{name}.router.balance_bias"]
        if moe["routing"] == "round_robin":
            slots = torch.arange(positions * top_k).view(positions, top_k) % count
            chosen = slots.expand(x.shape[0], positions, top_k)
        else:
            # A stable sort leaves equal experts in ascending order.
            chosen = torch.sort(scores, dim=-1, descending=True, stable=True)[1][..., :top_k]
        weights = probabilities.gather(-1, chosen)
        if moe["normalize_top_k"]:
            weights = weights / weights.sum(-1, keepdim=True)
        slots = F.one_hot(chosen, count)  # [B, S, top_k, E]
        self.routing.append(Routing(logits, probabilities, slots.sum((1, 2))))
        if moe["capacity_factor"] is not None:
            capacity = math.ceil(moe["capacity_factor"] * positions * top_k / count)
            in_order = slots.flatten(1, 2)  # by position, then by choice
            fits = (in_order.cumsum(1) <= capacity) & (in_order > 0)
            slots = fits.view_as(slots).long()
            self.routing[-1].dropped = int(weights.numel() - slots.sum())
        by_expert = (weights.unsqueeze(-1) * slots).sum(-2)  # [B, S, E]
        y = sum(by_expert[..., e : e + 1] * self.mlp(f"{name}.experts.{e}", x) for e in range(count))
        for j in range(moe["shared_experts"]):
            y = y + self.mlp(f"{name}.shared.{j}", x)
        return y

    def router_losses(self):
        """The balance and the z-loss of the last forward, unweighted."""
        moe = self.model["moe"]
        balance, z = [], []
        for routing in self.routing:
            share = routing.loads / routing.loads.sum(-1, keepdim=True)
            balance.append((moe["experts"] * share * routing.probabilities.mean(1)).sum(-1).mean())
            z.append((torch.logsumexp(routing.logits, -1) ** 2).mean())
        return torch.stack(balance).mean(), torch.stack(z).mean()


class Routing:
    """Logits and probabilities [B, S, E] and the slots of each sequence [B, E] of one layer, before drops."""

    def __init__(self, logits, probabilities, loads):
        self.logits, self.probabilities, self.loads = logits, probabilities, loads
        self.dropped = 0


def gelu_tanh(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_exact(x):
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def relu_squared(x):
    return F.relu(x) ** 2


ACTIVATIONS = {"gelu": gelu_tanh, "gelu_exact": gelu_exact, "relu_squared": relu_squared}


def rms_norm(x, weight, epsilon):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + epsilon) * weight


def inverse_frequencies(model):
    """Radians per position of each pair of channels, [D / 2]."""
    frequencies = []
    for pair in range(model["head_dim"] // 2):
        frequency = model["rope_theta"] ** (-2 * pair / model["head_dim"])
        if model["rope_scaling"]:
            frequency = scaled_frequency(frequency, model["rope_scaling"])
        frequencies.append(frequency)
    return torch.tensor(frequencies, dtype=torch.float64)


def scaled_frequency(frequency, scaling):
    """Llama 3.1: long waves are stretched by `factor`, short ones stay, those between are blended."""
    turns = scaling["original_length"] * frequency / (2 * math.pi)  # over the original length
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    if turns < low:
        return frequency / scaling["factor"]
    if turns > high:
        return frequency
    blend = (turns - low) / (high - low)
    return (1 - blend) * frequency / scaling["factor"] + blend * frequency


def rotation_tables(model, angle_dtype):
    """cos and sin of every position and pair, [S, D / 2]."""
    positions = torch.arange(model["seq_length"], dtype=angle_dtype)
    angles = torch.outer(positions, inverse_frequencies(model).to(angle_dtype)).double()
    return torch.cos(angles), torch.sin(angles)
