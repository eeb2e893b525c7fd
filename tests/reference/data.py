"""Byte tokens of text files in SPEC section 4's plain order."""

import glob
import os
from pathlib import Path

import torch


def _files(path):
    if os.path.isdir(path):
        return sorted((str(entry) for entry in Path(path).iterdir() if entry.is_file()), key=os.fsencode)
    return sorted(glob.glob(path), key=os.fsencode) or [path]


def _tokens(entry):
    entries = entry if isinstance(entry, list) else [entry]
    paths = [item["path"] if isinstance(item, dict) else item for item in entries]
    if any(isinstance(item, dict) and item.get("weight") is not None for item in entries):
        raise SystemExit("data: the reference does not mix weighted sources")
    content = b"".join(Path(file).read_bytes() for path in paths for file in _files(path))
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).long()


class Samples:
    """Windows of S inputs and S targets of one source; ordinals wrap around at each epoch."""

    def __init__(self, tokens, seq_length):
        self.tokens, self.seq_length = tokens, seq_length
        self.count = (len(tokens) - 1) // seq_length

    def batch(self, first, count):
        """Samples first .. first + count - 1 as inputs and targets, each [count, S]."""
        starts = [n % self.count * self.seq_length for n in range(first, first + count)]
        windows = torch.stack([self.tokens[s : s + self.seq_length + 1] for s in starts])
        return windows[:, :-1], windows[:, 1:]


def load(data, seq_length):
    """Training and validation samples (or None) of the `data` section of a config."""
    if data["shuffle"] or data["tokenizer"] != "bytes" or data["format"] not in ("auto", "text"):
        raise SystemExit("data: the reference reads text as bytes without shuffling")
    tokens, validation = _tokens(data["train"]), data["validation"]
    if validation is None:
        return Samples(tokens, seq_length), None
    if isinstance(validation, float):
        kept = len(tokens) - int(validation * len(tokens))
        return Samples(tokens[:kept], seq_length), Samples(tokens[kept:], seq_length)
    return Samples(tokens, seq_length), Samples(_tokens(validation), seq_length)
