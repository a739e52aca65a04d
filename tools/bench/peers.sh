#!/bin/sh
# llmq beside llama.cpp on this machine: the same shape, the same threads, in turns.
#
# usage: LLAMA_BIN=FOLDER tools/bench/peers.sh MODEL.gguf [MODEL.llmq]
# LLAMA_BIN holds llama-bench (of whatever version: its build is printed). MODEL.gguf is what it
# runs; llmq runs MODEL.llmq, or its built-in 1.1 B Llama shape where none is given: then MODEL.gguf
# must have that shape for the ratios to mean anything. THREADS (default: all), REPEATS (4), PROMPT
# (512) and STEPS (32) are the caller's; LLMQ names another llmq.
set -eu
[ $# -ge 1 ] && [ $# -le 2 ] || { sed -n 's/^# \{0,1\}//; 2,9p' "$0" >&2; exit 2; }
llmq=${LLMQ:-$(dirname "$0")/../../llmq}
peer=${LLAMA_BIN:?peers.sh: LLAMA_BIN: expected the folder of llama-bench}/llama-bench
[ -x "$peer" ] || { echo "peers.sh: $peer: expected a program, found none" >&2; exit 2; }
[ -x "$llmq" ] || { echo "peers.sh: $llmq: expected a program, found none (make builds it)" >&2; exit 2; }
gguf=$1 model=${2:-}
threads=${THREADS:-$(nproc)} repeats=${REPEATS:-4} prompt=${PROMPT:-512} steps=${STEPS:-32}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
i=0
while [ "$i" -lt "$repeats" ]; do
    i=$((i + 1))
    # shellcheck disable=SC2086  # no model: no argument
    "$llmq" bench model $model --threads "$threads" --prompt "$prompt" --batch 1 --steps "$steps" \
        --log-level error --json >"$out/llmq.$i"
    "$peer" -m "$gguf" -t "$threads" -p "$prompt" -n "$steps" -r 1 -o json >"$out/peer.$i"
done
python3 - "$out" "$repeats" "$threads" <<'PY'
import json, statistics, sys

out, repeats, threads = sys.argv[1], int(sys.argv[2]), sys.argv[3]
ours, theirs, about = {"prefill": [], "decode": []}, {"prefill": [], "decode": []}, {}
for i in range(1, repeats + 1):
    doc = json.load(open(f"{out}/llmq.{i}"))
    ours["prefill"].append(doc["prefill_tok_s"])
    ours["decode"].append(doc["decode_tok_s"])
    for row in json.load(open(f"{out}/peer.{i}")):
        theirs["decode" if row["n_gen"] else "prefill"].append(row["avg_ts"])
        about = row
print(f"llmq {doc['scheme']}, kernels {doc['kernels']}, activations {doc['activations']}; llama.cpp "
      f"{about.get('build_commit', '?')}, {about.get('model_type', '?')}; {threads} threads, {repeats} turns each")
print(f"{'tokens/s':10}{'':8}{'llmq':>10}{'llama.cpp':>12}{'ratio':>8}")
for work in ours:
    for name, pick in (("best", max), ("median", statistics.median)):
        a, b = pick(ours[work]), pick(theirs[work])
        print(f"{work:10}{name:8}{a:10.2f} {b:11.2f} {a / b:7.2f}")
PY
