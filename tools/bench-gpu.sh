#!/bin/sh
# The built-in 1.1 B model on the first GPU: prefill, and decode at several batch sizes, beside what a
# copy says of its memory. Writes build/bench-gpu.json. Without a GPU: "skipped" and why, exit 0.
# LLMQ: another program than ./llmq.
set -eu
cd "$(dirname "$0")/.."
llmq=${LLMQ:-./llmq}
devices=$("$llmq" version | sed -n 's/^devices *//p')
case $devices in
*cuda:0\ *) ;;
*) echo "skipped: $devices"; exit 0 ;;
esac
echo "$devices"
"$llmq" bench model --device cuda --batch 1,8,32,64 --json >build/bench-gpu.json
cat build/bench-gpu.json
