#!/usr/bin/env python3
"""Make uniform.safetensors: what plain numpy gives for rounding to nearest and for GPTQ.

usage: make.py OUT      (numpy only; everything in float64 except where a value is stored)

w [24,96], x [512,96] with correlated columns, h = x^T x / 512. For each case NAME = bits, mode, group:
  NAME.scales f16 [24,ng], NAME.zeros u8, NAME.codes u8 [24,96]     rounding to nearest
  NAME.gptq.codes, NAME.gptq_act.codes                              GPTQ with static groups
GPTQ here follows the paper's algorithm literally: upper Cholesky factor of the inverse of the
damped H, one column at a time, no blocks.
"""
import json
import struct
import sys

import numpy as np

rng = np.random.default_rng(7)
N, K, T = 24, 96, 512
w = (rng.standard_normal((N, K)) * rng.lognormal(0, 0.5, (N, 1))).astype(np.float32)
w[3] = 0                   # a row of zeros
w[4] = np.abs(w[4]) + 0.1  # one sign only
w[5] = -np.abs(w[5]) - 0.1
mix = rng.standard_normal((K, K)) / np.sqrt(K)
x = (rng.standard_normal((T, K)) @ (mix + np.eye(K)) * rng.lognormal(0, 0.7, K)).astype(np.float32)
x[:, 11] = 0               # an input that never fires
h = (x.astype(np.float64).T @ x / T).astype(np.float32)


def grid(g, bits, mode):
    """Scale (rounded to f16) and zero of each group g [..., G], float32 arithmetic as specified."""
    M, half = np.float32(2**bits - 1), np.float32(2 ** (bits - 1))
    lo, hi = np.minimum(g.min(-1), 0).astype(np.float32), np.maximum(g.max(-1), 0).astype(np.float32)
    if mode == "asym":
        s = hi / M - lo / M
    elif mode == "sym":
        s = np.maximum(-lo, hi) / (M / np.float32(2))
    else:
        s = -np.where(hi > -lo, hi, lo) / half
    zero_group = (lo == 0) & (hi == 0)
    s = np.where(zero_group, np.float32(1), s).astype(np.float16).astype(np.float32)
    z = np.clip(np.rint(-lo / s), 0, M) if mode == "asym" else np.full_like(s, half)
    return s, z.astype(np.float32)


def code(v, s, z, bits):
    return np.clip(np.rint(v / s) + z, 0, 2**bits - 1)


def rtn(bits, mode, G):
    g = w.reshape(N, K // G, G)
    s, z = grid(g, bits, mode)
    return s, z, code(g, s[..., None], z[..., None], bits).reshape(N, K)


def gptq(bits, mode, G, act):
    s, z = grid(w.reshape(N, K // G, G), bits, mode)
    H = h.astype(np.float64)
    diag = np.diag(h).copy()
    perm = np.argsort(-diag, kind="stable") if act else np.arange(K)
    H = H[np.ix_(perm, perm)]
    H[np.diag_indices(K)] = np.where(np.diag(H) > 0, np.diag(H), 1) + 0.01 * diag.astype(np.float64).mean()
    U = np.linalg.cholesky(np.linalg.inv(H)).T
    W, q = w[:, perm].astype(np.float64), np.zeros((N, K))
    for k in range(K):
        g = perm[k] // G
        c = code(W[:, k], s[:, g], z[:, g], bits)
        q[:, perm[k]] = c
        e = (W[:, k] - s[:, g] * (c - z[:, g])) / U[k, k]
        W[:, k + 1:] -= np.outer(e, U[k, k + 1:])
    return q


out = {"w": w, "x": x, "h": h}
for name, bits, mode, G in (("u4a", 4, "asym", 32), ("u4s", 4, "sym", 48), ("u4f", 4, "full", 96),
                            ("u3a", 3, "asym", 24), ("u2a", 2, "asym", 16), ("u8s", 8, "sym", 96)):
    s, z, c = rtn(bits, mode, G)
    out[name + ".scales"] = s.astype(np.float16)
    out[name + ".zeros"] = z.astype(np.uint8)
    out[name + ".codes"] = c.astype(np.uint8)
    out[name + ".gptq.codes"] = gptq(bits, mode, G, False).astype(np.uint8)
    out[name + ".gptq_act.codes"] = gptq(bits, mode, G, True).astype(np.uint8)

kinds = {np.dtype(np.float32): "F32", np.dtype(np.float16): "F16", np.dtype(np.uint8): "U8"}
header, data = {}, b""
for k in sorted(out, key=lambda k: (-out[k].dtype.itemsize, k)):
    v = np.ascontiguousarray(out[k])
    header[k] = {"dtype": kinds[v.dtype], "shape": list(v.shape), "data_offsets": [len(data), len(data) + v.nbytes]}
    data += v.tobytes()
text = json.dumps(header, separators=(",", ":")).encode()
text += b" " * (-len(text) % 8)
open(sys.argv[1], "wb").write(struct.pack("<Q", len(text)) + text + data)
