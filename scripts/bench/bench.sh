#!/bin/sh
# Prints kernels and the built-in model beside the machine's measured limits, and writes the same
# as JSON to build/bench.json.
#
# usage: scripts/bench/bench.sh [THREADS]     (make bench)
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
