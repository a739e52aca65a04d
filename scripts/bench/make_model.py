#!/usr/bin/env python3
"""A Hugging Face checkpoint of the built-in 1.1 B shape with noise for weights (2.1 GB; embedding and head are tied),
and the tokenizer of models/novels-6m: to time quantization at a size that this repository has no model of.

usage: scripts/bench/make_model.py FOLDER [LAYERS]"""
import json
import os
import random
import shutil
import struct
import sys

HIDDEN, HEADS, KV_HEADS, FFN, VOCAB = 2048, 32, 4, 5632, 32000
FROM = "models/novels-6m"
SIGNS = bytes(0x3C | (i & 0x80) for i in range(256))  # with any low byte: +- 2^-7 to 2^-5, about 1 / sqrt(2048)


def noise(rng, n):
    """n bf16 numbers, little-endian."""
    out = bytearray(2 * n)
    out[0::2] = rng.randbytes(n)
    out[1::2] = rng.randbytes(n).translate(SIGNS)
    return out


def tensors(layers):
    kv = HIDDEN // HEADS * KV_HEADS
    yield "model.embed_tokens.weight", [VOCAB, HIDDEN]
    for i in range(layers):
        of = f"model.layers.{i}."
        yield of + "input_layernorm.weight", [HIDDEN]
        for name, rows, cols in [("q", HIDDEN, HIDDEN), ("k", kv, HIDDEN), ("v", kv, HIDDEN), ("o", HIDDEN, HIDDEN)]:
            yield f"{of}self_attn.{name}_proj.weight", [rows, cols]
        yield of + "post_attention_layernorm.weight", [HIDDEN]
        for name, rows, cols in [("gate", FFN, HIDDEN), ("up", FFN, HIDDEN), ("down", HIDDEN, FFN)]:
            yield f"{of}mlp.{name}_proj.weight", [rows, cols]
    yield "model.norm.weight", [HIDDEN]


def main():
    folder, layers = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 22
    os.makedirs(folder, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(os.path.join(FROM, name), folder)
    with open(os.path.join(FROM, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    config.update(vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=FFN, num_hidden_layers=layers,
                  num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HIDDEN // HEADS)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=2)
    header, at = {}, 0
    for name, shape in tensors(layers):
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    rng = random.Random(1)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        for name, shape in tensors(layers):
            f.write(b"\x80\x3f" * shape[0] if len(shape) == 1 else noise(rng, shape[0] * shape[1]))


if __name__ == "__main__":
    main()
