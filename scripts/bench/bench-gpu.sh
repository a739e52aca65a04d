#!/bin/sh
# Everything on the first GPU that has a figure to reach: kernels and the shape of Llama-3.1-8B beside
# what a copy says of its memory, torch and Triton beside them where they are installed, GPTQ's time on
# noise of the 1.1 B shape. Writes build/bench-gpu.json and, from it, docs/performance-gpu.md. Without
# a GPU: "skipped" and why, exit 0. LLMQ: another program than ./llmq. PYTHON: that has torch. PAGE:
# written in place of the page. SHAPE: another built-in one. GPTQ_LAYERS: fewer than 22.
set -eu
cd "$(dirname "$0")/../.."
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
shape=${SHAPE:-llama-3.1-8b}
run model 120 "$llmq" bench model --device cuda --shape "$shape" --batch 1,8,32,64 --prompt 4096 --json
run model_invariant 60 "$llmq" bench model --device cuda --shape "$shape" --batch 1,32 --prompt 4096 --batch-invariant --json
python3 scripts/bench/make_model.py "$work/noise" "${GPTQ_LAYERS:-22}"
run gptq 150 "$llmq" quantize "$work/noise" -o "$work/gptq.llmq" --method gptq --calib-samples 128 --calib-len 512 \
    --device cuda --no-check --json
rm -rf "$work/noise" "$work/gptq.llmq"
run peers 60 "$python" scripts/bench/gpu_peers.py
clocks after
python3 scripts/bench/gpu_page.py "$work" build/bench-gpu.json "${PAGE:-docs/performance-gpu.md}"
