#!/usr/bin/env python3
"""Copy checkpoints that other projects quantized, without the tensors of their base that they left alone.

usage: strip.py BASE OUT SOURCE...

BASE is tests/golden/arch/llama-128; each SOURCE a folder made from it by GPTQModel, AutoAWQ,
bitsandbytes or llm-compressor, with expected.safetensors (input_ids, logits of the library's own
unpacked weights in float32). OUT/NAME gets config.json, expected.safetensors and part.safetensors: the
stored bytes of every tensor that is not the base's own number for number. Base and part make a
checkpoint of two shards again; __metadata__["base"] says the type that the base's tensors had in it.
"""
import json
import pathlib
import shutil
import struct
import sys


def read(path):
    b = path.read_bytes()
    n = struct.unpack("<Q", b[:8])[0]
    return json.loads(b[8:8 + n]), b[8 + n:]


def piece(h, d, name, dtype=None):
    """A tensor's bytes; bf16 as f32 where dtype says so."""
    b = d[slice(*h[name]["data_offsets"])]
    if dtype == "F32" and h[name]["dtype"] == "BF16":
        wide = bytearray(2 * len(b))
        wide[2::4], wide[3::4] = b[0::2], b[1::2]
        return bytes(wide)
    return b


base_h, base_d = read(pathlib.Path(sys.argv[1]) / "model.safetensors")
for source in map(pathlib.Path, sys.argv[3:]):
    h, d = read(source / "model.safetensors")
    out = pathlib.Path(sys.argv[2]) / source.name
    out.mkdir(parents=True, exist_ok=True)
    base_dtype = h["lm_head.weight"]["dtype"]
    header, data = {"__metadata__": {"format": "pt", "base": base_dtype}}, b""
    for name, t in h.items():
        if name == "__metadata__":
            continue
        if name in base_h and piece(base_h, base_d, name, base_dtype) == piece(h, d, name):
            continue
        header[name] = {**t, "data_offsets": [len(data), len(data) + len(piece(h, d, name))]}
        data += piece(h, d, name)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    (out / "part.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    for name in ("config.json", "expected.safetensors"):
        shutil.copyfile(source / name, out / name)
