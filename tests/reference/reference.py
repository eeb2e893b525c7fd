#!/usr/bin/python3
"""Trains a finished run again with PyTorch in fp64 and compares every number that the run wrote.

Usage: reference.py RUN_DIR ...

Each RUN_DIR must hold config.yaml, metrics.jsonl, weights/step_00000000 and gradients/step_00000001.safetensors. Losses (of
routers too) and norms agree when |a - b| <= tol * |b|; a gradient when max|a - b| <= tol * max(max|b|, g), g = grad_norm / sqrt(number
of parameters), since some gradients are zero in exact arithmetic. tol is 1e-10 in fp64, 1e-5 in fp32 (held against
this fp64 computation). Exits 1 naming what differs first in each run.
"""

import json
import math
import sys
from pathlib import Path

import torch
import yaml

import data
import hugging_face
import optimizer
import safetensors_io
from model import Model

TOLERANCE = {"fp64": 1e-10, "fp32": 1e-5}
RATE_TOLERANCE = 1e-13  # learning rates are computed in double in every precision


class Comparison:
    """Collects errors, each as a share of what is allowed, and remembers the worst of every kind and the first failure."""

    def __init__(self):
        self.worst = {}
        self.failure = None

    def add(self, kind, where, error, reference, tolerance):
        """`error` is an absolute difference, `reference` the size that it is measured by."""
        relative = error / reference if reference else (0.0 if error == 0 else math.inf)
        passes = relative <= tolerance  # false for nan
        if not passes and self.failure is None:
            self.failure = f"{kind} {where}: relative error {relative:.3g} is above {tolerance:g}"
        if kind not in self.worst or not relative <= self.worst[kind][0]:
            self.worst[kind] = (relative, tolerance, where)

    def scalar(self, kind, where, value, reference, tolerance):
        if value is None:
            value = math.nan
        self.add(kind, f"{where} ({value!r}, reference {reference!r})", abs(value - reference), abs(reference), tolerance)

    def require(self, condition, message):
        if not condition and self.failure is None:
            self.failure = message

    def report(self):
        print(f"{'quantity':<18}{'worst error':>12}{'allowed':>10}  where")
        for kind, (relative, tolerance, where) in self.worst.items():
            print(f"{kind:<18}{relative:>12.2e}{tolerance:>10.0e}  {where}")
        if self.failure:
            print(f"FAILED: {self.failure}")
        return 1 if self.failure else 0


def load_config(path):
    """The resolved config; numbers that YAML 1.1 takes for text (1e-05) become numbers."""

    def numbers(value):
        if isinstance(value, dict):
            return {key: numbers(item) for key, item in value.items()}
        if isinstance(value, list):
            return [numbers(item) for item in value]
        if isinstance(value, str):
            try:
                return float(value)
            except ValueError:
                return value
        return value

    return numbers(yaml.safe_load(path.read_text()))


def load_metrics(path):
    """Training lines by step, and validation losses by step."""
    steps, validation = {}, {}
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        if "validation_loss" in entry:
            validation[entry["step"]] = entry["validation_loss"]
        else:
            steps[entry["step"]] = entry
    return steps, validation


def compare_gradients(comparison, path, gradients, norm, tolerance):
    dumped = safetensors_io.read(path)
    for name in sorted(set(gradients) ^ set(dumped)):
        comparison.require(False, f"gradient {name} is {'not dumped' if name in gradients else 'of no parameter'}")
    floor = norm / math.sqrt(sum(g.numel() for g in gradients.values()))
    for name, reference in gradients.items():
        if name not in dumped:
            continue
        ours = dumped[name]
        if ours.shape != reference.shape:
            comparison.require(False, f"gradient {name} has shape {list(ours.shape)}, not {list(reference.shape)}")
            continue
        size = max(float(reference.abs().max()), floor)
        comparison.add("gradient", name, float((ours - reference).abs().max()), size, tolerance)


def compare_routing(comparison, step, line, model, tolerance):
    """Returns what the routers' losses add to the objective."""
    moe = model.model["moe"]
    balance, z = model.router_losses()
    comparison.scalar("aux_loss", f"step {step}", line.get("aux_loss"), balance.item(), tolerance)
    comparison.scalar("z_loss", f"step {step}", line.get("z_loss"), z.item(), tolerance)
    busiest = max(float(loads.max() / loads.double().mean()) for loads in (r.loads.sum(0) for r in model.routing))
    comparison.scalar("max_expert_load", f"step {step}", line.get("max_expert_load"), busiest, tolerance)
    dropped = sum(routing.dropped for routing in model.routing)
    comparison.require(line.get("dropped_slots") == dropped,
                       f"dropped_slots of step {step} is {line.get('dropped_slots')}, reference {dropped}")
    weight = moe["aux_loss_weight"] if moe["balance"] == "aux_loss" else 0
    return weight * balance + moe["z_loss_weight"] * z


def validation_loss(model, samples, config):
    train = config["train"]
    count = min(train["eval_steps"] * train["global_batch_size"], samples.count)
    with torch.no_grad():
        return float(model.loss(*samples.batch(0, count)))


def evaluates_after(step, train):
    return step == train["steps"] or (train["eval_every"] > 0 and step % train["eval_every"] == 0)


def train_and_compare(run):
    config = load_config(run / "config.yaml")
    section, train = config["model"], config["train"]
    if section["dropout"] != 0:
        raise SystemExit("model.dropout: the reference has none")
    precision = config["precision"]["compute"]
    tolerance = TOLERANCE[precision]
    angle_dtype = torch.float64 if precision == "fp64" else torch.float32

    parameters = hugging_face.load(run / "weights/step_00000000", section)
    biases = {name: parameters.pop(name) for name in list(parameters) if name.endswith(".balance_bias")}
    for parameter in parameters.values():
        parameter.requires_grad_(True)
    model = Model(section, {**parameters, **biases}, angle_dtype)
    samples, validation = data.load(config["data"], section["seq_length"])
    settings = config["optimizer"]
    adam = optimizer.AdamW(parameters, settings["betas"], settings["epsilon"], settings["weight_decay"])

    comparison = Comparison()
    metrics, validation_metrics = load_metrics(run / "metrics.jsonl")
    steps, batch = train["steps"], train["global_batch_size"]
    comparison.require(sorted(metrics) == list(range(1, steps + 1)), f"metrics.jsonl lacks steps of 1 to {steps}")
    clipped = 0
    for step in range(1, steps + 1):
        loss = model.loss(*samples.batch((step - 1) * batch, batch))
        objective = loss
        if section.get("moe"):
            objective = objective + compare_routing(comparison, step, metrics.get(step, {}), model, tolerance)
        gradients = dict(zip(parameters, torch.autograd.grad(objective, list(parameters.values()))))
        norm = optimizer.global_norm(gradients)
        rate = optimizer.learning_rate(step, settings["learning_rate"], config["schedule"])
        scale = optimizer.clip_scale(norm, settings["clip_grad_norm"])
        clipped += scale < 1
        line = metrics.get(step, {})
        comparison.scalar("learning_rate", f"step {step}", line.get("learning_rate"), rate, RATE_TOLERANCE)
        comparison.scalar("loss", f"step {step}", line.get("loss"), loss.item(), tolerance)
        if step == 1:
            compare_gradients(comparison, run / "gradients/step_00000001.safetensors", gradients, norm, tolerance)
        comparison.scalar("grad_norm", f"step {step}", line.get("grad_norm"), norm, tolerance)
        adam.update({name: scale * gradient for name, gradient in gradients.items()}, rate)
        optimizer.move_balance_biases(biases, model.routing, section.get("moe"))
        if validation is not None and evaluates_after(step, train):
            reference = validation_loss(model, validation, config)
            comparison.scalar("validation_loss", f"step {step}", validation_metrics.get(step), reference, tolerance)
    print(f"{run.name}: {precision}, {sum(p.numel() for p in parameters.values())} parameters, {steps} steps, "
          f"{clipped} of them clipped")
    return comparison.report()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    torch.set_num_threads(1)  # tensors are too small to share
    sys.exit(max(train_and_compare(Path(run)) for run in sys.argv[1:]))
