"""Reads safetensors files with nothing but numpy."""

import json
import struct

import numpy
import torch

_TYPES = {"F64": numpy.float64, "F32": numpy.float32, "I64": numpy.int64, "I32": numpy.int32, "U8": numpy.uint8}


def read(path):
    """All tensors of a file, floating ones widened to fp64: {name: torch tensor}."""
    with open(path, "rb") as file:
        content = file.read()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__", None)
    data = content[8 + length :]
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        if entry["dtype"] == "BF16":
            wide = numpy.frombuffer(data[begin:end], dtype=numpy.uint16).astype(numpy.uint32) << 16
            values = wide.view(numpy.float32)
        else:
            values = numpy.frombuffer(data[begin:end], dtype=_TYPES[entry["dtype"]])
        tensor = torch.from_numpy(values.reshape(entry["shape"]).copy())
        tensors[name] = tensor.double() if tensor.is_floating_point() else tensor
    return tensors
