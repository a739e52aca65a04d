#!/usr/bin/env python3
"""docs/performance-gpu.md of what scripts/bench/gpu.sh found, here or on a machine that was rented (make gpu-bundle).

usage: scripts/bench/gpu_page.py RESULT.json [PAGE.md]     RESULT.json '-': nothing was measured
A PAGE performance-gpu-PART.md is of another part: it has no predictions, and the page of the same folder names it."""
import glob
import json
import os
import sys

import gpu_predict

OTHER = "performance-gpu-"  # how pages of other parts are named
LLAMA = "Llama-3.1-8B's shape"  # runtime/model/model_builtin.c


def row(parts, part, name, shape):
    return next((r for r in parts.get(part, {}).get("rows", []) if r["name"] == name and r["shape"] == shape), None)


def products(M):
    return f"{M}x14336x4096"


def of_copy(name, shape, least, part="kernels"):
    def read(parts):
        r = row(parts, part, name, shape)
        return r and (f"{r['percent_of_copy']:.1f} %, {r['seconds'] * 1e6:.1f} us", r["percent_of_copy"] >= least)
    return read


def of_one(M, most):
    def read(parts):
        r = row(parts, "kernels", "u4-g128 bf16", products(M))
        return r and (f"{r['times_one_row']:.2f}", r["times_one_row"] <= most)
    return read


def of_cublas(M, least):
    """Of torch's, or else of what cuBLAS did with bf16 weights here."""
    def read(parts):
        r = row(parts, "kernels", "u4-g128 bf16", products(M))
        peer = row(parts, "peers", "torch bf16", products(M)) or row(parts, "kernels", "bf16 bf16", products(M))
        return r and peer and (f"{100 * r['gflops'] / peer['gflops']:.1f} %, {r['gflops'] * 1e-3:.1f} TFLOP/s",
                               100 * r["gflops"] >= least * peer["gflops"])
    return read


def expanded(M):
    """Which of two ways is the device's: kernels/cuda/dev.cu, wide_from."""
    def read(parts):
        a, b = (row(parts, "kernels", "u4-g128 " + how, products(M)) for how in ("expanded", "units"))
        return a and b and (f"{b['seconds'] / a['seconds']:.2f} times as fast as own kernels", None)
    return read


def prefill(parts):
    r = row(parts, "kernels", "prefill bf16", "1 x 8192, 32/8x128")
    return r and (f"{r['gflops'] * 1e-3:.0f} TFLOP/s", r["gflops"] >= 550e3)


def ahead(name, peer, shape):
    def read(parts):
        a, b = row(parts, "kernels", name, shape), row(parts, "peers", peer, shape)
        return a and b and (f"{b['seconds'] / a['seconds']:.2f} times as fast", a["seconds"] <= b["seconds"])
    return read


def invariant(parts):
    plain, order = (parts.get(p, {}).get("prefill_tok_s") for p in ("model", "model_invariant"))
    return plain and order and (f"prefill {order / plain:.2f} of the speed without", None)


def whole(shape, least):
    """Per cent of the roofline: weights and cache read once at the copy's bandwidth."""
    def read(parts):
        r = row(parts, "model", "decode", shape)
        return r and parts["model"]["model"] == LLAMA and (
            f"{r['percent_of_limit']:.1f} %, {r['decode_tok_s']:.0f} tokens/s", r["percent_of_limit"] >= least)
    return read


def whole_prefill(parts):
    r, peer = row(parts, "model", "prefill", "1 x 4096"), row(parts, "peers", "torch bf16", products(4096))
    return r and peer and parts["model"]["model"] == LLAMA and (
        f"{100 * r['gflops'] / peer['gflops']:.1f} %, {r['prefill_tok_s']:.0f} tokens/s", 100 * r["gflops"] >= 55 * peer["gflops"])


def gptq(parts):
    seconds = parts.get("gptq", {}).get("seconds")
    return seconds and (f"{seconds:.1f} s", seconds <= 60)


# (what, target, how it is read of the parts: a function to (figure in words, met or None))
TABLE = [
    ("u4-g128, one row, 29 MB in six turns", "90 % of the copy's bandwidth", of_copy("u4-g128 bf16", products(1), 90)),
    ("16 rows, times the time of one", "1.10", of_one(16, 1.10)),
    ("32 rows, times the time of one", "1.25", of_one(32, 1.25)),
    ("64 rows, times the time of one", "1.5", of_one(64, 1.5)),
    ("512 rows, of bf16 by cuBLAS", "80 %", of_cublas(512, 80)),
    ("4,096 rows, of bf16 by cuBLAS", "80 %", of_cublas(4096, 80)),
    ("512 rows, expanded for cuBLAS", "", expanded(512)),
    ("4,096 rows, expanded for cuBLAS", "", expanded(4096)),
    ("attention, causal, 8,192 tokens, head 128, bf16", "550 TFLOP/s", prefill),
    ("paged decode, 32 x 4,096, 4 heads a group", "85 % of the copy's bandwidth",
     of_copy("decode bf16", "32 x 4096, 32/8x128", 85)),
    ("paged decode, 32 x 4,096, 8 heads a group", "85 %", of_copy("decode bf16", "32 x 4096, 64/8x128", 85)),
    ("paged decode, 1 x 32,768", "75 %", of_copy("decode bf16", "1 x 32768, 32/8x128", 75)),
    ("one row against torch's bf16", "ahead", ahead("u4-g128 bf16", "torch bf16", products(1))),
    ("bf16 weights, 64 rows, against torch's", "ahead", ahead("bf16 bf16", "torch bf16", products(64))),
    ("prefill against torch's SDPA", "ahead", ahead("prefill bf16", "torch prefill", "1 x 8192, 32/8x128")),
    ("decode, 32 x 4,096, against torch's SDPA", "ahead", ahead("decode bf16", "torch decode", "32 x 4096, 32/8x128")),
    ("what `--batch-invariant` costs", "", invariant),
    ("Llama-3.1-8B's shape, u4-g128, bf16 head: one sequence", "70 % of the roofline", whole("1 x 1", 70)),
    ("the same, 32 sequences", "60 % of the roofline", whole("32 x 1", 60)),
    ("the same, a prompt of 4,096", "55 % of torch's bf16 at 4,096 rows", whole_prefill),
    ("gaps between kernels in a decode step", "15 %", lambda parts: None),
    ("GPTQ of noise of the 1.1 B shape, 128 x 512", "60 s", gptq),
]


def head(parts, k):
    """Which device, and what was not well there."""
    lines = [f"{parts.get('date', 'some day')}, {k['device']} (compute capability {k['compute_capability'] / 10}, "
             f"{k['multiprocessors']} multiprocessors), a copy reads and writes {k['limits']['copy_gbytes_s']:.0f} GB/s.",
             f"Driver, clocks, power, temperature before: {parts.get('before', 'unknown')}; after: {parts.get('after', 'unknown')}."]
    if "peers" in parts:
        lines += [f"torch {parts['peers']['torch']}, Triton {parts['peers']['triton'] or 'not there'}, in the same run."]
    steps = parts.get("steps", [])
    for r in [r for r in steps if r["result"] == "FAILED"]:
        lines += [f"Failed there: {r['step']}: {r['says']}"]
    return lines + ([f"{sum(r['result'] == 'ok' for r in steps)} of {len(steps)} steps went well."] if steps else [])


def page(parts, others, own):
    """others: pages of other parts; own: this is one."""
    k = parts.get("kernels")
    lines = ["# Speed on a GPU", ""]
    if k:
        lines += head(parts, k)
    else:
        lines += ["**Compiled and emulated, not measured**: nobody has run llmq on a GPU yet. `make test-gpu` and `make bench-gpu` do on a",
                  "machine that has one, [`make gpu-bundle`](gpu-rented.md) on one that is rented; `scripts/bench/gpu_page.py` rewrites this",
                  "page of what they found. What the kernels are, and what `ptxas` says of them: [design/0006-cuda.md](design/0006-cuda.md)."]
    if others:
        lines += ["Other parts: " + ", ".join(f"[{name[len(OTHER):-3].upper()}]({name})" for name in others) + "."]
    lines += ["", "| what | to reach | found | |", "|---|---|---|---|"]
    for what, target, read in TABLE:
        found = read(parts) if k else None
        text, met = found if found else ("not measured", None)
        lines.append(f"| {what} | {target} | {text} | {'' if met is None else 'yes' if met else 'no'} |")
    lines += ["", "Not measured by `make bench-gpu`: gaps, which a profiler shows",
              "(`nsys profile --trace cuda ./llmq bench model --device cuda --shape llama-3.1-8b --batch 1`)."]
    if not own:
        lines += ["", "## Predictions", "",
                  "**Predicted, not measured**: what the kernels should reach by the arithmetic of `scripts/bench/gpu_predict.py`, from counted",
                  "instructions and bytes. After the semicolon: the kernel's limit, which is memory, issue slots or the matrix units,",
                  "whichever takes longest; a range in per cent is of that limit.", "", *gpu_predict.table()]
    for part in ("kernels", "kernels_int8"):
        if part not in parts:
            continue
        lines += ["", f"## {part.replace('_', ', ')}", "", "| | shape | us | TFLOP/s | GB/s | % of the copy |", "|---|---|---|---|---|---|"]
        lines += [f"| {r['name']} | {r['shape']} | {r['seconds'] * 1e6:.1f} | {r['gflops'] * 1e-3:.2f} | {r['gbytes_s']:.0f} | "
                  f"{r['percent_of_copy']:.1f} |" for r in parts[part]["rows"]]
    if "model" in parts:
        lines += ["", f"## {parts['model']['model']}", "", "| | tokens/s |", "|---|---|"]
        lines += [f"| {r['name']} {r['shape']} | {r.get('decode_tok_s', r.get('prefill_tok_s')):.0f} |" for r in parts["model"]["rows"]]
    return "\n".join(lines) + "\n"


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    source, target = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else os.path.join(os.path.dirname(__file__), "../../docs/performance-gpu.md")
    parts = {}
    try:
        if source != "-":
            with open(source, encoding="utf-8") as f:
                parts = json.load(f)
        folder, name = os.path.split(target)
        own = name.startswith(OTHER)
        others = [] if own else sorted(os.path.basename(p) for p in glob.glob(os.path.join(folder, OTHER + "*.md")))
        text = page(parts, others, own)
    except (OSError, ValueError) as e:
        sys.exit(f"gpu_page.py: {source}: {e}")
    except (AttributeError, KeyError, TypeError) as e:
        sys.exit(f"gpu_page.py: {source}: expected what scripts/bench/gpu.sh writes, found something else ({type(e).__name__}: {e})")
    with open(target, "w", encoding="utf-8") as f:
        f.write(text)
    print(f"{target}: {'written' if parts.get('kernels') else 'nothing was measured'}")


if __name__ == "__main__":
    main()
