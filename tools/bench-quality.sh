#!/bin/sh
# Prints what each quantizer costs: perplexity and mean KL divergence to the unquantized model, at
# equal bits per weight of the linear layers; the table also goes to build/bench-quality.tsv.
#
# usage: tools/bench-quality.sh          (make bench-quality)
#   MODELS   folders, each a checkpoint           (models/novels-6m)
#   METHODS  of those with groups                 (rtn awq gptq auto)
#   WIDTHS   bits:group                           (4:128 3:128 2:32)
#   TEXTS    held-out texts, windows of 512       (tests/golden/text/novels-heldout-100w.txt)
#   CALIB    calibration text, or builtin         (builtin)
#   SAMPLES  windows of it                        (128)
#   THREADS  0: all                               (0)
set -eu
cd "$(dirname "$0")/.."
[ -x ./llmq ] || { echo "bench-quality.sh: run make first" >&2; exit 1; }
models=${MODELS:-models/novels-6m}
methods=${METHODS:-rtn awq gptq auto}
widths=${WIDTHS:-4:128 3:128 2:32}
texts=${TEXTS:-tests/golden/text/novels-heldout-100w.txt}
calib=${CALIB:-builtin}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir -p build
table=build/bench-quality.tsv

number() { sed -n "s/.*\"$1\":[[:space:]]*\\([-0-9.eE+]*\\).*/\\1/p" "$2" | head -n 1; }

printf 'model\tmethod\tbits\tgroup\tbpw\ttext\tperplexity\tunquantized\tKL\tseconds\tpeak MiB\n' | tee "$table"
for model in $models; do
    for width in $widths; do
        for method in $methods; do
            case $method in
            rtn) data= ;;
            *) data="--calib $calib --calib-samples ${SAMPLES:-128}" ;;
            esac
            # shellcheck disable=SC2086
            ./llmq quantize "$model" -o "$tmp/q.llmq" --method "$method" --bits "${width%:*}" \
                --group-size "${width#*:}" $data --threads "${THREADS:-0}" --log-level error \
                --json >"$tmp/q.json"
            for text in $texts; do
                ./llmq eval "$tmp/q.llmq" --ref "$model" --text "$text" --ctx 512 \
                    --threads "${THREADS:-0}" --log-level error --json >"$tmp/e.json"
                printf '%s\t%s\t%s\t%s\t%.3f\t%s\t%.4f\t%.4f\t%.5f\t%.0f\t%.0f\n' \
                    "$(basename "$model")" "$method" "${width%:*}" "${width#*:}" \
                    "$(number bpw "$tmp/q.json")" "$(basename "$text")" \
                    "$(number perplexity "$tmp/e.json")" "$(number ref_perplexity "$tmp/e.json")" \
                    "$(number kl_mean "$tmp/e.json")" "$(number seconds "$tmp/q.json")" \
                    "$(($(number peak_rss_bytes "$tmp/q.json") / 1048576))" | tee -a "$table"
            done
            rm -f "$tmp/q.llmq"
        done
    done
done
echo "bench-quality.sh: $table"
