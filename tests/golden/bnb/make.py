#!/usr/bin/env python3
"""Cut the parts of bitsandbytes reference files that tests/unit/test_quant_blocks.c reads.

usage: make.py bnb-4bit.safetensors llama-128/model.safetensors bnb-int8/model.safetensors OUT_DIR

The first holds, for matrices of several shapes and distributions in three dtypes, what bitsandbytes
0.50 returns from quantize_4bit (NF4, FP4, blocks of 64 and 128, double quantization). Kept: inputs,
packed codes, absmax and the double quantization's parts; dequantized copies, 8-bit blocks and three
matrices in other types than f32 are left out. The second and third are one checkpoint before and after load_in_8bit; two of its weights
are kept.
"""
import json
import os
import struct
import sys


def read(path):
    raw = open(path, "rb").read()
    n = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + n])
    header.pop("__metadata__", None)
    return {k: (t["dtype"], t["shape"], raw[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]])
            for k, t in header.items()}


def write(path, tensors):
    order = {"F32": 0, "BF16": 1, "F16": 2, "I8": 3, "U8": 4}
    header, data = {}, b""
    for name in sorted(tensors, key=lambda k: (order[tensors[k][0]], k)):
        dtype, shape, blob = tensors[name]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(blob)]}
        data += blob
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def is_left_out(name):
    large = name.split(".")[0] in ("normal", "outlier_column", "laplace")
    return name.endswith(".dequant") or ".dyn8." in name or large and ".f32." not in name


four, dense, eight, out = sys.argv[1:5]
write(os.path.join(out, "bnb-4bit-part.safetensors"),
      {k: v for k, v in read(four).items() if not is_left_out(k)})
dense, eight, part = read(dense), read(eight), {}
for name in ("model.layers.0.self_attn.k_proj", "model.layers.1.mlp.down_proj"):
    part[name + ".input"] = dense[name + ".weight"]
    part[name + ".codes"] = eight[name + ".weight"]
    part[name + ".SCB"] = eight[name + ".SCB"]
write(os.path.join(out, "bnb-int8-part.safetensors"), part)
