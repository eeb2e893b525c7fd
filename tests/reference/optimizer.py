"""Learning rate, clipping and AdamW from SPEC section 4's formulas."""

import math

import torch


def learning_rate(step, peak, schedule):
    """At `step`, counted from 1."""
    warmup, end, low = schedule["warmup_steps"], schedule["decay_steps"], schedule["min_learning_rate"]
    if step <= warmup:
        return peak * step / warmup
    kind = schedule["decay"]
    if kind == "constant":
        return peak
    if kind == "wsd":
        stable = 4 * end // 5
        if step <= stable:
            return peak
        return peak + (low - peak) * min(1, (step - stable) / (end - stable))
    progress = min(1, (step - warmup) / (end - warmup))
    if kind == "linear":
        return peak + (low - peak) * progress
    return low + (peak - low) * (1 + math.cos(math.pi * progress)) / 2


def global_norm(gradients):
    return math.sqrt(math.fsum(float((g * g).sum()) for g in gradients.values()))


def clip_scale(norm, clip):
    if clip == 0 or math.isinf(clip):
        return 1.0
    return min(1.0, clip / (norm + 1e-6))


@torch.no_grad()
def move_balance_biases(biases, routing, moe):
    """A step of each MoE layer's bias against the loads of the batch, by layer in ascending order."""
    for (_, bias), layer in zip(sorted(biases.items(), key=lambda item: int(item[0].split(".")[1])), routing):
        loads = layer.loads.sum(0).double()
        bias += moe["bias_update_rate"] * torch.sign(loads.mean() - loads)


class AdamW:
    """Decoupled decay of matrices only; bias correction by the count of updates."""

    def __init__(self, parameters, betas, epsilon, weight_decay):
        self.parameters = parameters
        self.betas, self.epsilon, self.weight_decay = betas, epsilon, weight_decay
        self.first = {name: torch.zeros_like(p) for name, p in parameters.items()}
        self.second = {name: torch.zeros_like(p) for name, p in parameters.items()}
        self.updates = 0

    @torch.no_grad()
    def update(self, gradients, rate):
        self.updates += 1
        beta1, beta2 = self.betas
        for name, weight in self.parameters.items():
            gradient = gradients[name]
            first = self.first[name] = beta1 * self.first[name] + (1 - beta1) * gradient
            second = self.second[name] = beta2 * self.second[name] + (1 - beta2) * gradient * gradient
            first = first / (1 - beta1**self.updates)
            second = second / (1 - beta2**self.updates)
            decay = self.weight_decay if weight.dim() == 2 else 0.0
            weight -= rate * (first / (torch.sqrt(second) + self.epsilon) + decay * weight)
