#!/usr/bin/env python3
"""Writes a Llama checkpoint of random weights, for measurements of time and memory.

usage: make-model.py OUT [--layers 22] [--hidden 2048] [--ffn 5632] [--heads 32] [--kv-heads 4]
                         [--vocab 32000] [--seed 0] [--calib N:LEN]

The default is the shape of `llmq bench model`: 1.1 B parameters, 2.2 GB of bf16. OUT gets config.json
and model.safetensors, and with --calib calib.jsonl with N samples of LEN token ids. There is no
tokenizer. The same options give the same bytes. Only numpy is needed.

Weights are normal with a standard deviation of 1/sqrt(inputs); norms' weights and the embedding's
columns spread log-normally, so that inputs of linears differ as they do in trained models."""
import argparse
import json
import pathlib
import struct

import numpy as np


def tensors(o):
    """(name, shape, how) in the order of the file; how: a scale, or "norm"."""
    d, kv = o.hidden, o.hidden // o.heads * o.kv_heads
    yield "model.embed_tokens.weight", (o.vocab, d), "embedding"
    for i in range(o.layers):
        p = f"model.layers.{i}."
        yield p + "input_layernorm.weight", (d,), "norm"
        for name, n, k in [("self_attn.q_proj", d, d), ("self_attn.k_proj", kv, d),
                           ("self_attn.v_proj", kv, d), ("self_attn.o_proj", d, d),
                           ("mlp.gate_proj", o.ffn, d), ("mlp.up_proj", o.ffn, d),
                           ("mlp.down_proj", d, o.ffn)]:
            yield p + name + ".weight", (n, k), "linear"
        yield p + "post_attention_layernorm.weight", (d,), "norm"
    yield "model.norm.weight", (d,), "norm"
    yield "lm_head.weight", (o.vocab, d), "linear"


def values(rng, shape, how):
    """Rows of bf16 as uint16, a few at a time."""
    if how == "norm":
        x = np.exp(0.5 * rng.standard_normal(shape, dtype=np.float32))
        yield to_bf16(x)
        return
    rows, inputs = shape
    scale = np.float32(inputs ** -0.5)
    columns = np.exp(0.5 * rng.standard_normal(inputs, dtype=np.float32)) if how == "embedding" else 1
    for r in range(0, rows, 1024):
        x = rng.standard_normal((min(1024, rows - r), inputs), dtype=np.float32)
        yield to_bf16(x * scale * columns)


def to_bf16(x):
    """Round to nearest, ties to even."""
    u = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    return ((u + (0x7FFF + ((u >> 16) & 1))) >> 16).astype("<u2")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("out", type=pathlib.Path)
    for name, default in [("layers", 22), ("hidden", 2048), ("ffn", 5632), ("heads", 32),
                          ("kv-heads", 4), ("vocab", 32000), ("seed", 0)]:
        p.add_argument("--" + name, type=int, default=default)
    p.add_argument("--calib", metavar="N:LEN")
    o = p.parse_args()
    if o.hidden % o.heads or o.heads % o.kv_heads:
        p.error("--heads must divide --hidden, and --kv-heads --heads")
    o.out.mkdir(parents=True, exist_ok=True)
    (o.out / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
        "hidden_size": o.hidden, "intermediate_size": o.ffn, "num_hidden_layers": o.layers,
        "num_attention_heads": o.heads, "num_key_value_heads": o.kv_heads,
        "vocab_size": o.vocab, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False,
        "attention_bias": False, "mlp_bias": False, "bos_token_id": 1, "eos_token_id": 2}, indent=1))
    header, at = {}, 0
    for name, shape, _ in tensors(o):
        end = at + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(o.out / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for i, (_, shape, how) in enumerate(tensors(o)):
            for x in values(np.random.default_rng((o.seed, i)), shape, how):
                f.write(x.tobytes())
    if o.calib:
        n, length = map(int, o.calib.split(":"))
        rng = np.random.default_rng((o.seed, 1 << 20))
        with open(o.out / "calib.jsonl", "w") as f:
            for _ in range(n):  # small ids are frequent, as in text
                ids = (o.vocab * rng.random(length) ** 3).astype(int)
                f.write(json.dumps({"ids": ids.tolist()}) + "\n")


if __name__ == "__main__":
    main()
