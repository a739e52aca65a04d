#!/usr/bin/env python3
"""AWQ's worked example on a small model (docs/concepts/awq-scaling.md): which inputs to protect, and how.

usage: awq-scaling.py MODEL CALIB_TEXT HELD_OUT_TEXT OUT_DIR [--windows N] [--llmq PATH]

MODEL is a Hugging Face folder. All linear layers are rounded to 3 bits in groups of 128 (zero points,
f16 scales, as `llmq quantize --method rtn --bits 3`), but for a hundredth of each layer's inputs:
  keep:    those columns stay as they are; chosen by mean |input|, by mean |weight|, or at random
  scale:   those columns (by mean |input|) are multiplied by s before and divided by s after rounding
Every variant is written as a folder and measured by `llmq eval --ref MODEL`. Prints a table and JSON
lines, one per variant. Needs torch, transformers and tokenizers.
"""
import argparse
import json
import os
import shutil
import subprocess

import torch
import transformers as tf
from tokenizers import Tokenizer

BITS, GROUP, SHARE = 3, 128, 0.01


def rounded(w):
    """Rounding to nearest; a width that 128 does not divide takes the largest divisor below."""
    n, k = w.shape
    group = next(g for g in range(min(GROUP, k), 0, -1) if k % g == 0)
    x, top = w.reshape(n, -1, group), 2**BITS - 1
    lo, hi = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
    s = ((hi - lo) / top).half().float()
    s = torch.where(s == 0, torch.ones_like(s), s)
    z = (-lo / s).round().clamp(0, top)
    return (s * ((x / s + z).round().clamp(0, top) - z)).reshape(n, k)


def input_means(model, linears, ids, windows=16, length=512):
    """Mean magnitude of each linear's inputs over windows of the calibration text."""
    sums = {name: torch.zeros(m.in_features) for name, m in linears.items()}

    def add(name):
        def hook(module, inputs):
            sums[name].add_(inputs[0].abs().mean((0, 1)))
        return hook

    hooks = [m.register_forward_pre_hook(add(name)) for name, m in linears.items()]
    with torch.no_grad():
        for i in range(windows):
            at = i * (len(ids) - length) // windows
            model(torch.tensor([ids[at:at + length]]))
    for h in hooks:
        h.remove()
    return sums


def measure(a, model, name):
    folder = os.path.join(a.out, name)
    model.save_pretrained(folder, safe_serialization=True)
    for f in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(a.model, f), folder)
    r = subprocess.run([a.llmq, "eval", folder, "--no-bos", "--ref", a.model, "--text", a.text, "--ctx", "512", "--windows",
                        str(a.windows), "--json"], check=True, capture_output=True, text=True)
    shutil.rmtree(folder)
    r = json.loads(r.stdout)
    print(json.dumps({"variant": name, "perplexity": r["perplexity"], "kl": r["kl_mean"]}), flush=True)
    return r


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("calib")
    ap.add_argument("text")
    ap.add_argument("out")
    ap.add_argument("--windows", type=int, default=25)
    ap.add_argument("--llmq", default="./llmq")
    a = ap.parse_args()
    tok = Tokenizer.from_file(os.path.join(a.model, "tokenizer.json"))
    ids = tok.encode(open(a.calib, encoding="utf-8").read(), add_special_tokens=False).ids
    model = tf.AutoModelForCausalLM.from_pretrained(a.model, torch_dtype=torch.float32).eval()
    linears = {n: m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and "lm_head" not in n}
    weights = {n: m.weight.detach().clone() for n, m in linears.items()}
    means = input_means(model, linears, ids)
    g = torch.Generator().manual_seed(0)
    order = {
        "activation": {n: means[n].argsort(descending=True) for n in linears},
        "weight": {n: weights[n].abs().mean(0).argsort(descending=True) for n in linears},
        "random": {n: torch.randperm(weights[n].shape[1], generator=g) for n in linears},
    }
    variants = [("rtn", None, 0)] + [(f"keep-by-{k}", k, 0) for k in order]
    variants += [(f"scale-{s:g}", "activation", s) for s in (1, 1.25, 1.5, 2, 4, 8, 16, 32)]
    rows = []
    for name, by, s in variants:
        for n, m in linears.items():
            w = weights[n]
            some = order[by][n][:max(1, round(SHARE * w.shape[1]))] if by else []
            x = w.clone()
            if s:
                x[:, some] *= s
            q = rounded(x)
            q[:, some] = q[:, some] / s if s else w[:, some]
            m.weight.data = q
        r = measure(a, model, name)
        rows.append((name, r["perplexity"], r["kl_mean"]))
    print("\n| variant | perplexity | KL |\n|---|---|---|")
    for name, ppl, kl in rows:
        print(f"| {name} | {ppl:.2f} | {kl:.4f} |")


main()
