#!/bin/sh
# Everything on the first GPU that has a figure to reach: kernels and the built-in 1.1 B model beside
# what a copy says of its memory, torch and Triton beside them where they are installed, GPTQ's time.
# Writes build/bench-gpu.json and, from it, docs/performance-gpu.md. Without a GPU: "skipped" and why,
# exit 0. LLMQ: another program than ./llmq. PYTHON: that has torch. PAGE: written in place of the page.
set -eu
cd "$(dirname "$0")/.."
llmq=${LLMQ:-./llmq} python=${PYTHON:-python3} work=build/bench-gpu
devices=$("$llmq" version | sed -n 's/^devices *//p')
case $devices in
*cuda:0\ *) ;;
*) echo "skipped: $devices"; exit 0 ;;
esac
echo "$devices"
rm -rf "$work"
mkdir -p "$work"
clocks() { # NAME: what the GPU does now
    nvidia-smi --query-gpu=driver_version,clocks.sm,clocks.mem,power.draw,temperature.gpu --format=csv,noheader \
        >"$work/$1.txt" 2>/dev/null || echo unknown >"$work/$1.txt"
}
run() { # NAME SECONDS COMMAND...: one part; what fails is said and left out
    name=$1 limit=$2
    shift 2
    if timeout "$limit" "$@" >"$work/$name.json" 2>"$work/$name.err"; then
        echo "$name: done"
    else
        echo "$name: $(tail -n 1 "$work/$name.err")"
        rm -f "$work/$name.json"
    fi
}
clocks before
run kernels 120 "$llmq" bench kernels --device cuda --json
run kernels_int8 60 "$llmq" bench kernels --device cuda --activations int8 --json
run model 90 "$llmq" bench model --device cuda --batch 1,8,32,64 --prompt 4096 --json
run model_invariant 60 "$llmq" bench model --device cuda --batch 1,32 --prompt 4096 --batch-invariant --json
run gptq 90 "$llmq" quantize models/novels-6m -o "$work/gptq.llmq" --method gptq --device cuda --no-check --json
run peers 60 "$python" tools/bench/gpu_peers.py
clocks after
python3 tools/bench/gpu_page.py "$work" build/bench-gpu.json "${PAGE:-docs/performance-gpu.md}"
