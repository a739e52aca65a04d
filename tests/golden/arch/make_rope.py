#!/usr/bin/env python3
"""Rotary tables in numpy float32, one rounding per operation in the order of transformers'
modeling_rope_utils (v4.57): the truth for tests/unit/test_arch.c. Writes rope.json beside itself."""
import json
import math
import os

import numpy as np

f32 = np.float32


def inv_freq(c, seq_len):
    dim = int(c["head_dim"] * c.get("partial_rotary_factor", 1.0))
    base = c.get("rope_theta", 10000.0)
    sc = c.get("rope_scaling") or c.get("rope_parameters") or {}
    base = sc.get("rope_theta", base)
    kind = sc.get("rope_type", sc.get("type", "default"))
    factor = sc.get("factor")
    max_pos = c["max_position_embeddings"]
    exps = np.arange(0, dim, 2, dtype=f32) / f32(dim)
    if kind == "dynamic":
        n = max(seq_len, max_pos)
        grown = f32(f32(factor) * f32(n)) / f32(max_pos) - f32(factor - 1)
        base = f32(base) * np.power(f32(grown), f32(dim / (dim - 2)))
    turn = np.power(f32(base), exps)
    inv = f32(1) / turn
    att = 1.0
    if kind == "linear":
        inv = inv / f32(factor)
    elif kind == "llama3":
        old = sc["original_max_position_embeddings"]
        lo, hi = sc["low_freq_factor"], sc["high_freq_factor"]
        wave = f32(2 * math.pi) / inv
        out = np.where(wave > f32(old / lo), inv / f32(factor), inv)
        smooth = (f32(old) / wave - f32(lo)) / f32(hi - lo)
        mid = (f32(1) - smooth) * out / f32(factor) + smooth * out
        between = ~(wave < f32(old / hi)) & ~(wave > f32(old / lo))
        inv = np.where(between, mid, out)
    elif kind == "yarn":
        old = sc.get("original_max_position_embeddings") or max_pos

        def get_mscale(scale, m=1.0):
            return 1.0 if scale <= 1 else 0.1 * m * math.log(scale) + 1.0

        att = sc.get("attention_factor")
        if att is None:
            m, m_all = sc.get("mscale"), sc.get("mscale_all_dim")
            att = get_mscale(factor, m) / get_mscale(factor, m_all) if m and m_all else get_mscale(factor)

        def dim_of(rotations):
            return dim * math.log(old / (rotations * 2 * math.pi)) / (2 * math.log(base))

        low, high = dim_of(sc.get("beta_fast") or 32), dim_of(sc.get("beta_slow") or 1)
        if sc.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        if low == high:
            high += 0.001
        ramp = np.clip((np.arange(dim // 2, dtype=f32) - f32(low)) / f32(high - low), 0, 1).astype(f32)
        keep = f32(1) - ramp
        inv = f32(1) / (f32(factor) * turn) * (f32(1) - keep) + inv * keep
    return inv.astype(f32), f32(att)


def table(c, pos0, n, seq_len):
    inv, att = inv_freq(c, seq_len)
    angle = np.arange(pos0, pos0 + n).astype(f32)[:, None] * inv[None, :]
    return inv, np.cos(angle).astype(f32) * att, np.sin(angle).astype(f32) * att


BASE = {"architectures": ["LlamaForCausalLM"], "vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 4, "intermediate_size": 160, "max_position_embeddings": 128, "head_dim": 16}
L3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 32}
CASES = [
    ("plain", {}, 0),
    ("theta", {"rope_theta": 500000.0}, 0),
    ("integer theta, wide head", {"rope_theta": 1000000, "head_dim": 128}, 0),
    ("linear, old spelling", {"rope_scaling": {"type": "linear", "factor": 4.0}}, 0),
    ("linear, newer spelling", {"rope_scaling": {"rope_type": "linear", "factor": 2.5}}, 0),
    ("both spellings, the newer counts", {"rope_scaling": {"type": "dynamic", "rope_type": "linear", "factor": 3.0}}, 0),
    ("default spelled out", {"rope_scaling": {"rope_type": "default"}}, 0),
    ("newest spelling", {"rope_parameters": {"rope_theta": 50000.0, "rope_type": "linear", "factor": 2.0}}, 0),
    ("newest spelling, no scaling", {"rope_parameters": {"rope_theta": 50000.0}}, 0),
    ("dynamic within its length", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 100),
    ("dynamic beyond", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 200),
    ("dynamic far beyond", {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, 4096),
    ("llama3", {"rope_theta": 500000.0, "rope_scaling": L3}, 0),
    ("llama 3.1", {"rope_theta": 500000.0, "head_dim": 128, "max_position_embeddings": 131072,
                   "rope_scaling": dict(L3, original_max_position_embeddings=8192)}, 0),
    ("yarn", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}}, 0),
    ("yarn, wide", {"rope_theta": 1000000.0, "head_dim": 128, "max_position_embeddings": 131072,
                    "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}, 0),
    ("yarn, not truncated", {"rope_theta": 150000.0, "head_dim": 64,
                             "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                                              "original_max_position_embeddings": 4096, "truncate": False}}, 0),
    ("yarn, attention factor", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.75}}, 0),
    ("yarn, mscale", {"head_dim": 64, "rope_scaling": {"rope_type": "yarn", "factor": 40.0, "mscale": 1.0,
                      "mscale_all_dim": 0.707, "beta_fast": 32, "beta_slow": 1,
                      "original_max_position_embeddings": 4096}}, 0),
    ("yarn, betas", {"head_dim": 64, "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 16, "beta_slow": 2}}, 0),
    ("half the head", {"architectures": ["PhiForCausalLM"], "partial_rotary_factor": 0.5}, 0),
]


def main():
    out = []
    for why, extra, seq_len in CASES:
        c = dict(BASE, **extra)
        for pos0, n in ((0, 3), (61, 2)):
            inv, cos, sin = table(c, pos0, n, seq_len)
            out.append({"why": why, "config": c, "seq_len": seq_len, "pos0": pos0, "T": n,
                        "inv_freq": [float(x) for x in inv],
                        "cos": [float(x) for x in cos.ravel()], "sin": [float(x) for x in sin.ravel()]})
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rope.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(out, f, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
