#!/usr/bin/env python3
"""What each quantizer costs, beside the best of other projects at the same bits.

Quantizes each model by each method at each width, evaluates the result on each text against the
unquantized model, and prints one line of perplexity and mean KL divergence, with the best peer of
scripts/bench/peers.tsv and the ratio to it where there is one (peers were measured on the text with a star).
The rows also go to build/bench-quality.tsv and .json. Needs Python alone.

usage: make bench-quality          all of these can be set in front: MODELS=... WIDTHS=... make bench-quality
  MODELS   folders, each a checkpoint; novels-6m-outliers is made from novels-6m (scripts/make/make-outliers.py)
           (models/novels-6m novels-6m-outliers)
  METHODS  (rtn gptq awq hqq nf4 auto); those that this build lacks are left out
  WIDTHS   bits:group (4:128 3:128 2:32); nf4 runs once, with its own blocks of 64
  TEXTS    (novels-heldout-100w, Korean and WikiText-2 excerpts under tests/golden/text)
  CTX      tokens of a window (512)
  CALIB    as --calib (tests/golden/text/calib-novels.txt, which the peers had); SAMPLES of 512 tokens (128)
  EFFORT   of methods that have it (best)
  EXTRA    further options of quantize ()
  THREADS  0: all (0)
"""
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
LLMQ = os.environ.get("LLMQ", "./llmq")
TEXT = "tests/golden/text/"
PEER_TEXT = TEXT + "novels-heldout-100w.txt"
# KL of ours over that of the best peer must not be above: (method, bits) or (method, None) -> goal, whose rows
GOALS = {("auto", 4): (0.60, ""), ("auto", 3): (0.60, ""), ("auto", 2): (0.75, ""),
         ("gptq", None): (1.0, "llm-compressor GPTQ"), ("awq", None): (1.0, "AutoAWQ"),
         ("rtn", None): (1.0, "RTN"), ("nf4", None): (1.0, "bitsandbytes nf4 b64")}
COLUMNS = ["model", "method", "bits", "group", "bpw", "text", "perplexity", "unquantized", "kl", "top1_agree",
           "peer", "peer_kl", "ratio", "goal", "seconds", "peak_mib"]


def setting(name, default):
    return shlex.split(os.environ.get(name, default))


def llmq(*args):
    p = subprocess.run([LLMQ, *map(str, args), "--log-level", "error", "--json"], capture_output=True, text=True)
    if p.returncode:
        raise RuntimeError(p.stderr.strip())
    return json.loads(p.stdout)


def peers():
    lines = [x.split("\t") for x in (ROOT / "scripts/bench/peers.tsv").read_text().splitlines() if x[0] != "#"]
    return [dict(zip(lines[0], x)) for x in lines[1:]]


def beside(rows, model, method, bits, bpw):
    """The goal and the best peer at the same bits per weight (within 0.05): of `whose` rows, or of all."""
    goal, whose = GOALS.get((method, bits)) or GOALS.get((method, None)) or (None, "")
    at = [r for r in rows if r["model"] == model and int(r["bits"]) == bits and r["quantizer"].startswith(whose) and
          abs(float(r["bpw"]) - bpw) <= 0.05]
    return goal, min(at, key=lambda r: float(r["kl"]), default=None)


def methods_here():
    """Rows of `llmq quantize --list-methods`, of those asked for."""
    here = {m["name"]: m for m in llmq("quantize", "--list-methods")["methods"]}
    return [here[m] for m in setting("METHODS", "rtn gptq awq hqq nf4 auto") if m in here]


def runs(widths):
    for method in methods_here():
        for bits, group in (widths if "bits" in method else [(4, method.get("group_size"))]):
            yield method, bits, group


def main():
    os.chdir(ROOT)
    if not os.access("llmq", os.X_OK):
        sys.exit("bench-quality.py: run make first")
    known, out = peers(), []
    widths = [tuple(map(int, w.split(":"))) for w in setting("WIDTHS", "4:128 3:128 2:32")]
    texts = setting("TEXTS", f"{PEER_TEXT} {TEXT}korean-ud-gsd-excerpt.txt {TEXT}wikitext2-test-excerpt.txt")
    threads, calib = setting("THREADS", "0")[0], setting("CALIB", TEXT + "calib-novels.txt")[0]
    data = ["--calib", calib, "--calib-samples", setting("SAMPLES", "128")[0], "--no-check"]
    pathlib.Path("build").mkdir(exist_ok=True)
    form = "{:<20} {:<5} {:>5} {:>6}  {:<24} {:>10} {:>10} {:>9}  {:<40} {:>9} {:>6} {:>5} {:>6}"
    print(form.format("model", "by", "width", "bpw", "text", "perplexity", "unquant.", "KL", "best peer", "its KL",
                      "ratio", "goal", "secs"))
    with tempfile.TemporaryDirectory() as tmp:
        for path in setting("MODELS", "models/novels-6m novels-6m-outliers"):
            name = pathlib.Path(path).name
            if path == "novels-6m-outliers":
                path = f"{tmp}/{path}"
                subprocess.run([sys.executable, "scripts/make/make-outliers.py", "models/novels-6m",
                                "scripts/make/novels-6m-outliers.json", path], check=True)
            for row, bits, group in runs(widths):
                method = row["name"]
                width = ["--bits", bits] if "bits" in row["options"] else []
                width += ["--group-size", group] if "group-size" in row["options"] else []
                width += ["--effort", setting("EFFORT", "best")[0]] if "effort" in row["options"] else []
                q = llmq("quantize", path, "-o", f"{tmp}/q.llmq", "--method", method, *width,
                         *(data if row["text"] == "yes" else []), "--threads", threads, *setting("EXTRA", ""))
                for text in texts:
                    e = llmq("eval", f"{tmp}/q.llmq", "--no-bos", "--ref", path, "--text", text, "--ctx",  # as the known rows
                             setting("CTX", "512")[0], "--threads", threads)
                    row = dict(zip(COLUMNS, [name, method, bits, group, q["bpw"], pathlib.Path(text).stem,
                                             e["perplexity"], e["ref_perplexity"], e["kl_mean"], e["top1_agree"],
                                             None, None, None, None, q["seconds"], q["peak_rss_bytes"] / 2**20]))
                    goal, peer = beside(known, name, method, bits, q["bpw"])
                    if peer and text == PEER_TEXT:
                        row.update(peer=peer["quantizer"], peer_kl=float(peer["kl"]), goal=goal,
                                   ratio=e["kl_mean"] / float(peer["kl"]))
                    out.append(row)
                    show(form, row)
    pathlib.Path("build/bench-quality.json").write_text(json.dumps(out, indent=1) + "\n")
    tsv = ["\t".join(COLUMNS)] + ["\t".join("" if r[c] is None else str(r[c]) for c in COLUMNS) for r in out]
    pathlib.Path("build/bench-quality.tsv").write_text("\n".join(tsv) + "\n")
    missed = [r for r in out if r["goal"] and round(r["ratio"], 2) > r["goal"]]
    print(f"build/bench-quality.tsv, .json: {len(out)} rows, {sum(bool(r['goal']) for r in out)} with a goal, "
          f"{len(missed)} above it")


def show(form, r):
    peer = [r["peer"], f"{r['peer_kl']:.5f}", f"{r['ratio']:.2f}", f"{r['goal']:.2f}" if r["goal"] else ""] \
        if r["peer"] else [""] * 4
    print(form.format(r["model"], r["method"], f"{r['bits']}:{r['group']}", f"{r['bpw']:.3f}",
                      r["text"][:22] + ("*" if r["peer"] else ""), f"{r['perplexity']:.4f}",
                      f"{r['unquantized']:.4f}", f"{r['kl']:.5f}", *peer, f"{r['seconds']:.0f}"), flush=True)


if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, subprocess.CalledProcessError) as e:
        sys.exit(f"bench-quality.py: {e}")
