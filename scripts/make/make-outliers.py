#!/usr/bin/env python3
"""A checkpoint that computes the same as another, with activation outliers: what makes plain rounding fail.

In every layer some input channels become 32 times larger and the weights that read them 32 times
smaller. 32 is a power of two, so nothing is rounded. Which channels: a JSON object of "norm or
linear": [channels]. Those of a norm are scaled in its weight, those of down_proj in the rows of
up_proj that make them.

usage: scripts/make/make-outliers.py SOURCE CHANNELS.json OUT   (Llama, BF16, one safetensors file; Python alone)
"""
import array
import json
import pathlib
import shutil
import struct
import sys

FACTOR = 32


def bf16(bits, factor):
    """One BF16 number times a power of two, exactly."""
    value = struct.unpack("<f", struct.pack("<I", bits << 16))[0] * factor
    whole = struct.unpack("<I", struct.pack("<f", value))[0]
    assert whole & 0xFFFF == 0, "a weight too small to scale exactly"
    return whole >> 16


class Tensors:
    def __init__(self, path):
        raw = path.read_bytes()
        n = struct.unpack("<Q", raw[:8])[0]
        self.head, self.table = raw[:8 + n], json.loads(raw[8:8 + n])
        self.data = array.array("H", raw[8 + n:])

    def scale(self, name, factor, rows=None, columns=None):
        t = self.table[name + ".weight"]
        assert t["dtype"] == "BF16", name
        at, width = t["data_offsets"][0] // 2, t["shape"][-1]
        height = t["shape"][0] if len(t["shape"]) == 2 else 1
        for r in range(height) if rows is None else rows:
            for c in range(width) if columns is None else columns:
                i = at + r * width + c
                self.data[i] = bf16(self.data[i], factor)


def main(source, channels, out):
    source, out = pathlib.Path(source), pathlib.Path(out)
    tensors = Tensors(source / "model.safetensors")
    readers = {"input_layernorm": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
               "post_attention_layernorm": ["mlp.gate_proj", "mlp.up_proj"]}
    for name, which in json.loads(pathlib.Path(channels).read_text()).items():
        layer, _, what = name.partition("layers.")[2].partition(".")
        layer = f"model.layers.{layer}."
        if what == "mlp.down_proj":
            tensors.scale(layer + "mlp.up_proj", FACTOR, rows=which)
            tensors.scale(layer + what, 1 / FACTOR, columns=which)
            continue
        tensors.scale(layer + what, FACTOR, columns=which)
        for reader in readers[what]:
            tensors.scale(layer + reader, 1 / FACTOR, columns=which)
    out.mkdir(parents=True, exist_ok=True)
    for f in source.iterdir():
        if f.name != "model.safetensors":
            shutil.copyfile(f, out / f.name)
    (out / "model.safetensors").write_bytes(tensors.head + tensors.data.tobytes())


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
