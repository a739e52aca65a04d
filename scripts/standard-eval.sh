#!/bin/sh
# The figures that tables of quantized models print, for one model: perplexity on WikiText-2 by GPTQ's
# ruler (papers: windows of 2,048, joined rows, every token but the first of a window) and by
# llama.cpp's (windows of 512, their second half), and beside an unquantized model KL divergence, equal
# first choices and the change of the next token's probability, as llama-perplexity --kl-divergence
# has them. Needs Python; both models' weights; and the text: wiki.test.raw of wikitext-2-raw-v1.
#
# usage: [VARIABLE=...] sh scripts/standard-eval.sh MODEL
#   TEXT     the data set's rows, a line each (wikitext-2-raw/wiki.test.raw)
#   REF      the unquantized model; none: perplexities alone
#   BASE     what `llama-perplexity --kl-divergence-base FILE` or `llmq eval --save-kl-divergence-base
#            FILE` wrote of it, in place of REF
#   CTX      windows of GPTQ's ruler (2048; of AQLM, QuIP# and their like 4096)
#   CHUNKS   windows of llama.cpp's (512)
#   WINDOWS  score only the first so many of each (0: all)
#   OPTIONS  further options of llmq eval, such as --kv-cache-dtype int4 or --device cuda
#   LLMQ     the program (./llmq, else the one installed)
set -eu
case ${1:-} in
-h | --help | "") sed -n '2,20s/^# \{0,1\}//p' "$0"; [ "${1:-}" ] && exit 0 || exit 2 ;;
esac
model=$1
text=${TEXT:-wikitext-2-raw/wiki.test.raw}
windows=${WINDOWS:-0}
llmq=${LLMQ:-}
[ -n "$llmq" ] || { [ -x ./llmq ] && llmq=./llmq || llmq=llmq; }
if [ ! -f "$text" ]; then
    echo "standard-eval.sh: $text: no such file (TEXT names it; it is in wikitext-2-raw-v1.zip of ggml-org/ci)" >&2
    exit 2
fi
if [ -n "${REF:-}" ] && [ -n "${BASE:-}" ]; then
    echo "standard-eval.sh: REF and BASE are two names for one thing: give one" >&2
    exit 2
fi
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

evaluate() { # NAME OPTION...: --json into $out/NAME
    name=$1
    shift
    # shellcheck disable=SC2086 # a list of words
    "$llmq" eval "$model" "$@" --windows "$windows" ${OPTIONS:-} --json >"$out/$name"
}
"$llmq" inspect "$model" --json >"$out/model"
evaluate gptq --ruler gptq --join-rows --text "$text" --ctx "${CTX:-2048}"
set -- --ruler llama.cpp --text "$text" --ctx "${CHUNKS:-512}"
if [ -n "${BASE:-}" ]; then
    set -- --kl-divergence-base "$BASE"
elif [ -n "${REF:-}" ]; then
    set -- "$@" --ref "$REF"
fi
evaluate llama "$@"

python3 - "$model" "$out" <<'PYTHON'
import json
import pathlib
import sys

model, out = sys.argv[1], pathlib.Path(sys.argv[2])
size, gptq, llama = (json.loads((out / name).read_text()) for name in ("model", "gptq", "llama"))


def row(name, value):
    print(f"| {name} | {value} |")


def both(key, error, scale=1, places=6, unit=""):
    return f"{scale * llama[key]:.{places}f} ± {scale * llama[error]:.{places}f}{unit}"


print(f"| {model} | |\n|---|---|")
row("size", f"{size['file_bytes'] / 2**30:.3f} GiB")
row("bits per weight", f"{size['bpw_model']:.3f} ({size['bpw']:.3f} in the linear layers)")
for name, r in (("GPTQ's ruler", gptq), ("llama.cpp's ruler", llama)):
    row(f"perplexity, {name}, {r['windows']} x {r['ctx']}", f"{r['perplexity']:.4f} ± {r['perplexity_error']:.4f}")
if "kl_mean" in llama:
    row("perplexity of the reference, llama.cpp's ruler", f"{llama['ref_perplexity']:.4f}")
    row("perplexity's difference", both("perplexity_diff", "perplexity_diff_error", places=4))
    row("perplexity's ratio", both("perplexity_ratio", "perplexity_ratio_error"))
    row("mean KL divergence", both("kl_mean", "kl_error"))
    for key, name in (("kl_max", "largest"), ("kl_p999", "99.9 %"), ("kl_p99", "99 %"), ("kl_p95", "95 %"),
                      ("kl_p90", "90 %"), ("kl_median", "median")):
        row(f"KL divergence, {name}", f"{llama[key]:.6f}")
    row("same top token", both("top1_agree", "top1_error", 100, 3, " %"))
    row("mean change of the next token's probability", both("dp_mean", "dp_error", 100, 3, " %"))
    row("its RMS", both("dp_rms", "dp_rms_error", 100, 3, " %"))
PYTHON
