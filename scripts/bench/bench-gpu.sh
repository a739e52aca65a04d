#!/bin/sh
# Everything on the first GPU that has a figure to reach (scripts/bench/gpu.sh's bench): kernels and the shape of
# Llama-3.1-8B beside what a copy says of its memory, torch and Triton beside them where they are installed, GPTQ's time on
# noise of the 1.1 B shape. Writes build/bench-gpu.json and, from it, docs/performance-gpu.md. Without a GPU: "skipped" and
# why, exit 0. PYTHON: that has torch. PAGE: written in place of the page. LLMQ, SHAPE, GPTQ_LAYERS: as gpu.sh's.
set -eu
cd "$(dirname "$0")/../.."
code=0
BUDGET="${BUDGET:-900}" OUT=build/bench-gpu scripts/bench/gpu.sh bench || code=$?
case $code in
3) echo skipped && exit 0 ;;
0 | 1) ;;
*) exit $code ;;
esac
cp build/bench-gpu/result.json build/bench-gpu.json
python3 scripts/bench/gpu_page.py build/bench-gpu.json "${PAGE:-docs/performance-gpu.md}"
exit $code
