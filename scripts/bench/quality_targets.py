#!/usr/bin/env python3
"""The formats that engines run, made here and by the peer of each: mean KL to the unquantized model, at equal bits.

One line for each model, target and method: bits per weight of all tensors, our KL, the peer's, the ratio, the goal for it. A
peer is run by its own code on the same model, calibration text and windows; without it the line says "not here".
The rows also go to build/quality-targets.tsv. Needs Python alone, peers what they need.

usage: make bench-quality          or python3 scripts/bench/quality_targets.py; all of these can be set in front:
  MODELS   as bench-quality.py (models/novels-6m novels-6m-outliers)
  TARGETS  rows by name (all of them); none: TARGETS=-
  OURS     methods (gptq; auto takes long)
  LLAMA_BIN    folder of llama-quantize, llama-imatrix and llama-perplexity
  PEER_PYTHON  a Python that has llmcompressor (and auto_round for its rows), which quality_peer.py runs in
  PEERS    those to run (llama-quantize llmcompressor auto-round llama-perplexity); auto-round takes long
  WINDOWS  of 512 tokens of held-out novels (12); SAMPLES of 512 of the calibration text (128; llama-imatrix has 96)
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
HELD_OUT, CALIB = "tests/golden/text/novels-heldout-100w.txt", "tests/golden/text/calib-novels.txt"
ALL_PEERS = "llama-quantize llmcompressor auto-round llama-perplexity"
COLUMNS = ["model", "target", "by", "bpw", "kl", "peer", "peer_bpw", "peer_kl", "ratio", "goal"]


def gguf(mix, goal=0.70):
    return f"gguf:{mix}", ["--to", f"gguf:{mix}"], ["llama-quantize"], mix, goal


def uint(bits, group, goal):
    return f"u{bits}-g{group}", ["--bits", bits, "--group-size", group, "--embed", "keep"], ["llmcompressor", "auto-round"], f"{bits}:{group}", goal


def floats(name, goal):
    return name, ["--to", f"compressed-tensors:{name}"], ["llmcompressor", "auto-round"][:1 if name == "fp8-block" else 2], name, goal


# name, options of quantize, peers, what they are told, goal
ROWS = [*(gguf(m) for m in ("Q4_K_M", "IQ4_XS", "Q3_K_M", "IQ3_M", "Q2_K", "IQ2_M")),
        uint(4, 128, 0.65), uint(3, 128, 0.60), uint(2, 32, 0.70), floats("nvfp4", 0.70), floats("mxfp4", 0.70), floats("fp8-block", 1.0),
        ("int4-kv", None, ["llama-perplexity"], "q4_0", 0.8)]


def setting(name, default):
    return os.environ.get(name, default).split()


def run(args, **more):
    p = subprocess.run([str(a) for a in args], capture_output=True, text=True, **more)
    if p.returncode:
        raise RuntimeError(f"{args[0]}: {p.stderr.strip()[-400:]}")
    return p


def llmq(*args):
    return json.loads(run([os.environ.get("LLMQ", "./llmq"), *args, "--log-level", "error", "--json"]).stdout)


def kl_of(path, model, *more):
    return llmq("eval", path, "--ref", model, "--text", HELD_OUT, "--ctx", 512, "--windows", setting("WINDOWS", "12")[0], *more)["kl_mean"]


def bits_of(path):
    return llmq("inspect", path)["bpw_model"]


class Llama:
    """llama.cpp's programs; its F32 file and importance matrix of a model are made once."""

    def __init__(self, tmp):
        self.bin, self.tmp, self.made = os.environ.get("LLAMA_BIN"), tmp, {}

    def has(self, name):
        return self.bin and os.access(f"{self.bin}/{name}", os.X_OK)

    def __call__(self, name, *args):
        env = {**os.environ, "LD_LIBRARY_PATH": f"{self.bin}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
        return run([f"{self.bin}/{name}", *args], env=env)

    def files(self, model):
        if model not in self.made:
            at = f"{self.tmp}/llama-{len(self.made)}"
            llmq("convert", model, "-o", f"{at}.gguf", "--to", "gguf")
            if self.has("llama-imatrix"):
                self("llama-imatrix", "-m", f"{at}.gguf", "-f", CALIB, "-o", f"{at}.imatrix", "-c", 512, "--chunks", 96)
            self.made[model] = f"{at}.gguf", f"{at}.imatrix"
        return self.made[model]

    def quantize(self, model, mix):
        source, imatrix = self.files(model)
        out = f"{self.tmp}/theirs.gguf"
        self("llama-quantize", "--imatrix", imatrix, source, out, mix)
        return bits_of(out), kl_of(out, model)

    def cache(self, model, kind):
        """KL of its cache alone, beside its own answers with a cache in f32; ours on the same base file."""
        source, base = self.files(model)[0], f"{self.tmp}/base"
        common = ["-m", source, "-f", HELD_OUT, "-c", 512, "--chunks", setting("WINDOWS", "12")[0], "-fa", "on"]
        self("llama-perplexity", *common, "-ctk", "f32", "-ctv", "f32", "--kl-divergence-base", base)
        said = self("llama-perplexity", *common, "-ctk", kind, "-ctv", kind, "--kl-divergence-base", base, "--kl-divergence").stdout
        theirs = re.search(r"Mean +KLD: +(\S+)", said)[1]
        return 4.5, float(theirs), llmq("eval", model, "--kl-divergence-base", base, "--kv-cache-dtype", "int4")["kl_mean"]


def peer_python(kind, model, what, tmp):
    out = f"{tmp}/theirs"
    run(["rm", "-rf", out])
    run([os.environ["PEER_PYTHON"], ROOT / "scripts/bench/quality_peer.py", kind, what, model, CALIB, setting("SAMPLES", "128")[0], out])
    return bits_of(out), kl_of(out, model)


def peers_of(row, model, llama, tmp):
    """(name, bits, KL) of each peer that is here; what failed is said and left out."""
    for kind in (k for k in row[2] if k in setting("PEERS", ALL_PEERS)):
        try:
            if kind == "llama-quantize" and llama.has(kind) and llama.has("llama-imatrix"):
                yield "llama-quantize imatrix", *llama.quantize(model, row[3])
            elif kind in ("llmcompressor", "auto-round") and "PEER_PYTHON" in os.environ:
                yield kind, *peer_python(kind, model, row[3], tmp)
        except RuntimeError as e:
            print(f"{kind}: {e}", file=sys.stderr)


def measure(row, name, model, method, theirs, tmp):
    suffix = ".gguf" if row[0].startswith("gguf") else "" if row[1][0] == "--to" else ".llmq"
    out = f"{tmp}/ours{suffix}"
    how = [] if method == "fp8" else ["-m", method, "--calib", CALIB, "--calib-samples", setting("SAMPLES", "128")[0], "--no-check"]
    run(["rm", "-rf", out])
    llmq("quantize", model, "-o", out, *row[1], *how)
    best = min(theirs, key=lambda p: p[2], default=None)
    return line(name, row, how[1] if how else "fp8", bits_of(out), kl_of(out, model), best)


def cache_row(row, name, model, llama):
    if llama.has("llama-perplexity"):
        bits, theirs, ours = llama.cache(model, row[3])
        return line(name, row, "int4", 4.5, ours, ("llama.cpp q4_0 cache", bits, theirs))
    return line(name, row, "int4", 4.5, kl_of(model, model, "--kv-cache-dtype", "int4"), None)


def line(name, row, by, bits, kl, best):
    peer, peer_bits, peer_kl = best or ("not here", None, None)
    return dict(zip(COLUMNS, [name, row[0], by, bits, kl, peer, peer_bits, peer_kl, kl / peer_kl if best else None, row[4]]))


def text(v):
    return "" if v is None else f"{v:.5f}" if isinstance(v, float) and v < 1 else f"{v:.3f}" if isinstance(v, float) else str(v)


def show(r):
    print("{:<20} {:<13} {:<6} {:>7} {:>9}  {:<24} {:>7} {:>9} {:>7} {:>5}".format(
        *[("" if r["ratio"] is None else f"{r['ratio']:.3f}") if c == "ratio" else f"{r[c]:.2f}" if c == "goal" else text(r[c])
          for c in COLUMNS]), flush=True)


def models(tmp):
    for path in setting("MODELS", "models/novels-6m novels-6m-outliers"):
        name = pathlib.Path(path).name
        if path == "novels-6m-outliers":
            path = f"{tmp}/{path}"
            run([sys.executable, "scripts/make/make-outliers.py", "models/novels-6m", "scripts/make/novels-6m-outliers.json", path])
        yield name, path


def main():
    os.chdir(ROOT)
    wanted, out = setting("TARGETS", " ".join(r[0] for r in ROWS)), []
    unknown = set(wanted) - {r[0] for r in ROWS} - {"-"}
    if unknown:
        sys.exit(f"quality_targets.py: TARGETS: expected {' '.join(r[0] for r in ROWS)}, found {' '.join(sorted(unknown))}")
    print("{:<20} {:<13} {:<6} {:>7} {:>9}  {:<24} {:>7} {:>9} {:>7} {:>5}".format("model", "target", "by", "bpw", "KL", "peer", "bpw", "its KL", "ratio", "goal"))
    with tempfile.TemporaryDirectory() as tmp:
        llama = Llama(tmp)
        for name, model in models(tmp):
            for row in (r for r in ROWS if r[0] in wanted):
                if row[1] is None:
                    out.append(cache_row(row, name, model, llama))
                    show(out[-1])
                    continue
                theirs = list(peers_of(row, model, llama, tmp))
                for method in [*(["fp8"] if row[0] == "fp8-block" else []), *setting("OURS", "gptq")]:
                    out.append(measure(row, name, model, method, theirs, tmp))
                    show(out[-1])
    lines = ["\t".join(COLUMNS)] + ["\t".join("" if r[c] is None else str(r[c]) for c in COLUMNS) for r in out]
    pathlib.Path("build").mkdir(exist_ok=True)
    pathlib.Path("build/quality-targets.tsv").write_text("\n".join(lines) + "\n")
    met = [r for r in out if r["ratio"] is not None]
    print(f"build/quality-targets.tsv: {len(out)} rows, {len(met)} with a peer, {sum(round(r['ratio'], 2) > r['goal'] for r in met)} above the goal")


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as e:
        sys.exit(f"quality_targets.py: {e}")
