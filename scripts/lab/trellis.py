#!/usr/bin/env python3
"""Trellis codes beside the grids that llmq has: the study of docs/lab/trellis.md. Needs numpy and cc; `model` torch and transformers too.

usage: trellis.py gaussian                       mean square error of 2, 3 and 4 bits on Gaussian weights
       trellis.py decoding                       nanoseconds a weight of one core
       trellis.py model MODEL TEXT BITS L OUT    a model with its linears rounded so, as floats, for `llmq eval`;
                                                 L = BITS: to the best scalar grid instead, all else alike

A column of 256 rows is one sequence, so that each column's errors move to the later ones as in GPTQ; rows have one scale
each, inputs are rotated by a Hadamard matrix of random signs in blocks of 256. Bits: BITS, (L - BITS) / 256 for where a
sequence begins, 16 / inputs for scales.
"""
import ctypes
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
ROWS, WINDOWS, CTX = 256, 64, 512


def library():
    so = pathlib.Path(tempfile.mkdtemp()) / "trellis.so"
    subprocess.run(["cc", "-O3", "-march=native", "-ffast-math", "-shared", "-fPIC", HERE / "trellis.c", "-o", so, "-lm"], check=True)
    return ctypes.CDLL(str(so))


LIB = library()


def pointer(a):
    return a.ctypes.data_as(ctypes.POINTER(ctypes.c_float))


def book(kind, L, V=1):
    """Values of the states: random Gaussian ones, or 1MAD's, which are computed."""
    if kind == "table":
        return np.random.default_rng(1).standard_normal((1 << L, V)).astype(np.float32)
    s = (np.arange(1 << L, dtype=np.uint64) * 34038481 + 76625530) & 0xffffffff
    total = sum((s >> (8 * i)) & 255 for i in range(4)).astype(np.float32)
    return ((total - total.mean()) / total.std()).reshape(-1, 1).astype(np.float32)


def search(x, weight, values, L, bits):
    """The nearest sequence, for each column of x [rows, columns]."""
    x = np.ascontiguousarray(x, np.float32)
    y = np.empty_like(x)
    weight = np.ascontiguousarray(weight, np.float32)
    if LIB.viterbi(pointer(y), pointer(x), pointer(weight), len(x), pointer(values), L, bits, values.shape[1]):
        raise MemoryError
    return y


def lloyd_max(x, bits):
    """The best scalar grid without groups, and its error."""
    v = np.quantile(x, (np.arange(1 << bits) + 0.5) / (1 << bits))
    for _ in range(200):
        at = np.searchsorted((v[1:] + v[:-1]) / 2, x)
        v = np.array([x[at == i].mean() for i in range(len(v))])
    return v, np.mean((x - v[np.searchsorted((v[1:] + v[:-1]) / 2, x)]) ** 2)


def gaussian():
    x = np.random.default_rng(0).standard_normal(ROWS * 96).astype(np.float32)
    one = np.ones(ROWS, np.float32)
    for bits in (2, 3, 4):
        row = [f"{bits} bits: bound {4.0 ** -bits:.5f}, best scalar {lloyd_max(x, bits)[1]:.5f}"]
        for kind, L, V in (("table", 12, 1), ("table", 14, 1), ("table", 16, 1), ("1mad", 16, 1), ("table", 12, 2), ("table", 16, 2)):
            values = book(kind, L, V)
            y = np.concatenate([search(p, one, values, L, bits) for p in x.reshape(-1, ROWS)])
            row.append(f"{kind} L={L} V={V} {np.mean((x - y) ** 2):.5f}")
        print(", ".join(row), flush=True)


def hadamard(n, seed):
    h = np.ones((1, 1))
    while len(h) < 256:
        h = np.block([[h, h], [h, -h]])
    r = np.zeros((n, n))
    for i in range(0, n, 256):
        r[i:i + 256, i:i + 256] = h / 16
    return r * np.random.default_rng(seed).choice([-1.0, 1.0], n)[:, None]


def quantize(W, H, bits, L, values):
    """W [N,K] by the inputs' H; the rounded one, and tr(D H D^T) over that of zero."""
    N, K = W.shape
    R = hadamard(K, K)
    w, h = W @ R, R.T @ H @ R
    loss = lambda d: float(np.einsum("nk,kj,nj", d, h, d))
    scale = np.sqrt((w ** 2).mean(1))
    damped = h + np.eye(K) * 0.01 * np.trace(h) / K
    U = np.linalg.cholesky(np.linalg.inv(damped)).T
    left, q = w.copy(), np.empty_like(w)
    for k in range(K):
        for n in range(0, N, ROWS):
            s = scale[n:n + ROWS]
            q[n:n + ROWS, k] = search(left[n:n + ROWS, k] / s, (s / s.mean()) ** 2, values, L, bits) * s
        left[:, k + 1:] -= np.outer((left[:, k] - q[:, k]) / U[k, k], U[k, k + 1:])
    return q @ R.T, loss(w - q) / loss(w)


def model(path, text, bits, L, out):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    torch.manual_seed(0)
    m = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    tok = AutoTokenizer.from_pretrained(path)
    ids = torch.tensor(tok(open(text).read())["input_ids"])
    ids = ids[:len(ids) // CTX * CTX].reshape(-1, CTX)
    ids = ids[:: max(1, len(ids) // WINDOWS)][:WINDOWS]
    values, total, weights = book("table", L), [], 0
    if L == bits:
        values = lloyd_max(np.random.default_rng(2).standard_normal(100_000), bits)[0].reshape(-1, 1).astype(np.float32)
    for layer in m.model.layers:  # each by the inputs that the rounded layers before make
        linears = [x for x in layer.modules() if isinstance(x, torch.nn.Linear)]
        sums = {}

        def keep(mod, args):
            x = args[0].reshape(-1, args[0].shape[-1]).double()
            sums[mod] = sums.get(mod, 0) + x.T @ x
        hooks = [x.register_forward_pre_hook(keep) for x in linears]
        with torch.no_grad():
            for i in range(0, len(ids), 8):
                m.model(ids[i:i + 8])
        for x in hooks:
            x.remove()
        for x in linears:
            q, loss = quantize(x.weight.detach().double().numpy(), sums[x].numpy() / ids.numel(), bits, L, values)
            x.weight.data = torch.tensor(q, dtype=torch.float32)
            total.append(loss)
            weights += bits * q.size + (L - bits) * q.size / ROWS + 16 * len(q)
        print(f"relative losses {' '.join(f'{v:.4f}' for v in total[-len(linears):])}", flush=True)
    n = sum(x.weight.numel() for layer in m.model.layers for x in layer.modules() if isinstance(x, torch.nn.Linear))
    print(f"{weights / n:.3f} bits per weight, mean relative loss {np.mean(total):.5f}")
    m.save_pretrained(out)
    tok.save_pretrained(out)


if __name__ == "__main__":
    if sys.argv[1:] == ["gaussian"]:
        gaussian()
    elif sys.argv[1:] == ["decoding"]:
        ns = (ctypes.c_double * 4)()
        LIB.decoding(ns)
        print("ns a weight: 2-bit grid {:.3f}, 1MAD {:.3f}, table of 2^12 {:.3f}, of 2^16 {:.3f}".format(*ns))
    elif len(sys.argv) == 7 and sys.argv[1] == "model":
        model(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), sys.argv[6])
    else:
        sys.exit(__doc__)
