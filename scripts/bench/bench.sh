#!/bin/sh
# Prints kernels and the built-in model beside the machine's measured limits, and writes the same
# as JSON to build/bench.json. Real files beside llama.cpp in turns, where LLAMA_BIN is the folder of its
# llama-bench: MODELS, by default SmolLM2 where the tests have fetched it (peers.sh --help has the rest).
#
# usage: [LLAMA_BIN=FOLDER] [MODELS="A.gguf B.gguf"] scripts/bench/bench.sh [THREADS]     (make bench)
set -eu
cd "$(dirname "$0")/../.."
threads=${1:-0}
out=build/bench.json
part=$(mktemp -d)
trap 'rm -rf "$part"' EXIT
[ -x ./llmq ] || { echo "bench.sh: run make first" >&2; exit 1; }
./llmq version
parts=
for kind in kernels model; do
    ./llmq help bench | grep -q "bench $kind" || continue
    echo
    ./llmq bench $kind --threads "$threads" --log-level warn
    ./llmq bench $kind --threads "$threads" --log-level warn --json >"$part/$kind.json"
    parts="$parts $kind"
done
mkdir -p build
{
    printf '{"version":'
    ./llmq version --json
    for kind in $parts; do
        printf ',"%s":' "$kind"
        cat "$part/$kind.json"
    done
    printf '}\n'
} >"$part/all.json"
mv "$part/all.json" "$out"
echo "bench.sh: $out"

# ---- a peer ----
fetched=${LLMQ_TEST_CACHE:-$HOME/.cache/llmq-tests}/smollm2-135m-q4_1.gguf
if [ -z "${MODELS:-}" ] && [ -f "$fetched" ]; then MODELS=$fetched; fi
if [ -z "${LLAMA_BIN:-}" ]; then
    echo "skipped: llama.cpp beside it (LLAMA_BIN: the folder of llama-bench)"
elif [ -z "${MODELS:-}" ]; then
    echo "skipped: llama.cpp beside it (MODELS: .gguf files)"
else
    [ "$threads" = 0 ] || export THREADS="$threads"
    # shellcheck disable=SC2086 # a list
    scripts/bench/peers.sh $MODELS
fi
