#!/bin/sh
# What this machine's GPU says of llmq, step by step: that it runs, that its numbers are right, how fast it is. Wants
# a shell, the tools that every system has and the driver: no network, compiler, git or Python. `make gpu-bundle`
# packs it with all that it runs, as run.sh; in the repository it is `make bench-gpu`.
# usage: scripts/bench/gpu.sh [smoke] [numerics] [logits] [memcheck] [bench]   all without a word
# Each step has its own limit, all together BUDGET seconds (480); one that fails, hangs or cannot be done is said and the
# next one begins. OUT (gpu-results): after each step it has result.json, table.txt and what the step said.
# LLMQ, TESTS: the program and the tests (./llmq, build/tests/device-tests). SUITES: of the tests, these. HARD=: without
# the rows that take long. PYTHON: for torch and the noise of GPTQ, both left out without it. TEXT, CTX, WINDOWS: of the
# logits. SHAPE, BATCH, PROMPT, STEPS: of the model that is timed. GPTQ_LAYERS: 0 leaves GPTQ out. PATIENCE: times the
# limits, for an emulated GPU.
# exit: 0 all is well, 1 a step failed or its result was not kept, 2 the program does not run here, 3 there is no GPU for it.
set -u
cd "$(dirname "$0")/../.." || exit 2
llmq=${LLMQ:-./llmq} tests=${TESTS:-build/tests/device-tests} python=${PYTHON:-python3} out=${OUT:-gpu-results}
text=${TEXT:-calib/builtin_text.txt} model=models/novels-1m
hard=${HARD-1} patience=${PATIENCE:-1}
[ $# -gt 0 ] || set -- smoke numerics logits memcheck bench
for word; do
    case $word in
    smoke | numerics | logits | memcheck | bench) ;;
    *) echo "gpu.sh: expected smoke, numerics, logits, memcheck or bench, found '$word'" >&2 && exit 2 ;;
    esac
done
for number in "${BUDGET:-480}" "$patience" "${GPTQ_LAYERS:-22}"; do
    case $number in
    *[!0-9]*) echo "gpu.sh: BUDGET, PATIENCE and GPTQ_LAYERS: expected whole numbers, found '$number'" >&2 && exit 2 ;;
    esac
done
LLMQ_TEST_DEVICE=${LLMQ_TEST_DEVICE:-cuda}
export LLMQ_TEST_DEVICE
# OpenBLAS takes kernels without FMA on a CPU that it does not know. llmq quantize says which, unit tests do not.
if [ -z "${OPENBLAS_CORETYPE:-}" ] && grep -q -m1 avx2 /proc/cpuinfo; then
    OPENBLAS_CORETYPE=Haswell
    export OPENBLAS_CORETYPE
fi
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 2
rm -rf "$out/parts" "$out/logs" "$out/steps" "$out/table.txt" "$out/result.json" # of a run before
mkdir "$out/parts" "$out/logs" || exit 2
began=$(date +%s) end=$(($(date +%s) + ${BUDGET:-480})) failed=0 passed=0 other=0 lost=
driver() { # COMMAND...: one that asks the driver, which may hang
    timeout -k 5 $((60 * patience)) "$@"
}

# ---- the program and its libraries ----
# Those beside it, where a bundle has them; where this system's C library is older than the program, the C library too.
with=$out/with
libraries() { # FOLDER...: of what `with` runs
    printf '#!/bin/sh\n%s exec %s "$@"\n' "$1" "$2" >"$with" && return
    echo "gpu.sh: $out: cannot be written to: OUT= names another place" >&2
    exit 2
}
libraries "" ""
here=$(pwd) why=
if [ -d lib ]; then
    libraries "LD_LIBRARY_PATH='$here/lib'\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}" ""
fi
if ! why=$(driver sh "$with" "$llmq" version 2>&1) && [ -d libc ]; then
    libraries "" "'$here'/libc/ld-linux-* --library-path '$here/libc:$here/lib'\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}"
fi
version=$(driver sh "$with" "$llmq" version 2>&1)
rc=$?
case $rc in 124 | 137) why="no answer within $((60 * patience)) s: the GPU's driver hangs" ;; esac
if [ $rc -ne 0 ]; then
    echo "llmq does not run here, on $(uname -sm): ${why:-$version}" | head -n 5
    [ ! -f about ] || sed 's/^/this bundle: /' about
    exit 2
fi
devices=$(printf '%s\n' "$version" | sed -n 's/^devices *//p')
case $devices in
*cuda:0\ *) ;;
*)
    echo "no GPU that llmq can use: $devices"
    if ! [ -d lib ]; then
        : # what was built here says for itself what it lacks
    elif ! ls /dev/nvidia0 >/dev/null 2>&1; then
        echo "missing: /dev/nvidia0 (a container gets it by --gpus all)"
    elif ! driver nvidia-smi >/dev/null 2>&1; then
        echo "missing: a driver that answers (nvidia-smi fails)"
    fi
    exit 3
    ;;
esac

# ---- what is kept and said ----
quoted() { tr -d '\000-\037' | sed 's/\\/\\\\/g; s/"/\\"/g'; }
assemble() { # result.json, whole after every step
    {
        printf '{"llmq": "%s", "devices": "%s", "date": "%s", "machine": "%s",\n' \
            "$(printf '%s\n' "$version" | sed -n 's/^version *//p' | quoted)" "$(echo "$devices" | quoted)" \
            "$(date +%Y-%m-%d)" "$(uname -srm | quoted)"
        for f in "$out"/parts/*.txt; do
            [ ! -f "$f" ] || printf '"%s": "%s",\n' "$(basename "$f" .txt)" "$(quoted <"$f")"
        done
        for f in "$out"/parts/*.json; do
            [ ! -f "$f" ] || { printf '"%s": ' "$(basename "$f" .json)" && cat "$f" && echo ,; }
        done
        printf '"steps": [\n'
        sed '$!s/$/,/' "$out/steps"
        printf ']}\n'
    } 2>/dev/null >"$out/result.json.new" && mv "$out/result.json.new" "$out/result.json" && return
    lose
}
lose() { # said once
    [ -n "$lost" ] || echo "gpu.sh: $out: not all results can be written (df says what is free)" >&2
    lost=1
}
row() { # NAME RESULT SECONDS WORDS: ok, FAILED, skipped or not run
    case $2 in ok) passed=$((passed + 1)) ;; FAILED) failed=$((failed + 1)) ;; *) other=$((other + 1)) ;; esac
    printf '%-8s %4s s  %s%s\n' "$2" "$3" "$1" "${4:+: $4}" | tee -a "$out/table.txt" 2>/dev/null
    printf '{"step": "%s", "result": "%s", "seconds": %s, "says": "%s"}\n' "$(echo "$1" | quoted)" "$2" "$3" \
        "$(printf %s "$4" | quoted)" >>"$out/steps" || lose
    assemble
}
: >"$out/steps"
server= # that runs
trap '[ -z "$server" ] || kill $server; row interrupted FAILED $(($(date +%s) - began)) ""; exit 1' INT TERM HUP
atmost() { # SECONDS: or what is left of all, and of this part
    n=$((end - $(date +%s))) own=$(($1 * patience))
    [ "$n" -lt "$own" ] || n=$own
    m=$((${part_end:-$end} - $(date +%s)))
    [ "$n" -lt "$m" ] || n=$m
    echo "$n"
}
log() { printf '%s/logs/%s' "$out" "$(echo "$1" | tr -c 'a-z0-9A-Z\n' _)"; }
run() { # NAME SECONDS COMMAND...: true if it ended well; then, or if not, its row is written
    name=$1 limit=$(atmost "$2") of=$(log "$1") start=$(date +%s)
    shift 2
    if [ "$limit" -le 0 ]; then
        row "$name" "not run" 0 "no time was left"
        return 1
    fi
    timeout -k 5 "$limit" "$@" >"$of.out" 2>"$of.err" </dev/null
    rc=$? took=$(($(date +%s) - start))
    words=$(grep -m 1 'CHECK(' "$of.err" || tail -n 1 "$of.err")
    case $rc,$words in
    0,*) row "$name" ok $took "$([ -z "${show:-}" ] || sed -n "$show" "$of.out" | head -n 1)" ;;
    *,skipped*) row "$name" skipped $took "${words#skipped: }" ;;
    124,* | 137,*) row "$name" FAILED $took "stopped after $limit s" ;;
    *) row "$name" FAILED $took "exit $rc: $words" ;;
    esac
    return $rc
}
ours() { # NAME SECONDS ARGUMENTS: of llmq
    of_name=$1 seconds=$2
    shift 2
    run "$of_name" "$seconds" sh "$with" "$llmq" "$@"
}

# ---- the steps ----
smoke() {
    show=p
    ours "run on the GPU" 60 run $model 'Once upon a time' --device cuda -n 16 -t 0
    start=$(date +%s)
    sh "$with" "$llmq" serve $model --device cuda --port 0 >"$out/logs/serve" 2>&1 &
    server=$!
    while ! grep -q '^ready: ' "$out/logs/serve" && kill -0 $server 2>/dev/null && [ $(($(date +%s) - start)) -lt $((40 * patience)) ]; do
        sleep 1
    done
    ready=$(sed -n 's/^ready: .*, \(device .*\),.*/\1/p' "$out/logs/serve")
    given=$(sed -n 's/^\(given up: .*\)/; \1/p' "$out/logs/serve" | head -n 1)
    if [ -z "$ready" ]; then
        row "serve, isolated as it is by default" FAILED $(($(date +%s) - start)) "$(tail -n 1 "$out/logs/serve")"
        kill $server 2>/dev/null
        wait $server 2>/dev/null
        server=
        return
    fi
    row "serve, isolated as it is by default" ok $(($(date +%s) - start)) "$ready$given"
    url=$(sed -n 's/^listening on \(http:[^,]*\),.*/\1/p' "$out/logs/serve")
    # shellcheck disable=SC2016 # the inner shell's words
    if run "one completion over HTTP" 30 sh -c 'echo "Who was it?" | sh "$@"' - "$with" "$llmq" chat "$url" -n 8 -t 0 &&
        [ ! -s "$(log "one completion over HTTP").out" ]; then
        row "its words" FAILED 0 "none came"
    fi
    show=
    kill $server 2>/dev/null
    wait $server
    code=$? server=
    [ $code -eq 0 ] && ended=ok || ended=FAILED
    row "the server ends" "$ended" 0 "exit $code"
}

numerics() { # each test is a process of its own: what fails leaves the others a device that is well
    part_end=$(($(date +%s) + 150 * patience))
    suites=${SUITES:-$(sh "$with" "$tests" 2>"$out/logs/tests")}
    [ -n "$suites" ] || row "the tests" FAILED 0 "they do not run: $(tail -n 1 "$out/logs/tests")"
    for suite in $suites; do
        if ! list=$(timeout $((30 * patience)) sh "$with" "$tests" "$suite" --list 2>&1); then
            row "$suite" FAILED 0 "$(printf '%s\n' "$list" | tail -n 1)"
            continue
        fi
        for test in $list; do
            [ "$test" = skipped: ] && row "$suite" skipped 0 "$list" && break
            [ -z "$hard" ] || run "$suite $test" 60 env LLMQ_HARD=1 sh "$with" "$tests" "$suite" "$test"
            [ -n "$hard" ] || run "$suite $test" 60 sh "$with" "$tests" "$suite" "$test"
        done
    done
    part_end=
}

# Against the CPU's logits in f32, kept in 16 bits (llama-perplexity's file), which alone are 2e-6 apart on the model
# here; on the CPU bf16 is 3e-5 apart.
logits() {
    head -c 20000 "$text" >"$out/text"
    ours "a model of 4 bits" 20 quantize $model -o "$out/u4.llmq" --method rtn --bits 4 --group-size 64 --no-check
    for one in $model "$out/u4.llmq"; do
        base=$(basename "$one")
        ours "logits of $base on the CPU" 30 eval "$one" --text "$out/text" --ctx "${CTX:-64}" --windows "${WINDOWS:-8}" --ruler llama.cpp \
            --activations f32 --kv-cache-dtype f32 --save-kl-divergence-base "$out/base.kld" || continue
        show='s/.*"kl_mean":[^0-9]*\([^,]*\).*/KL divergence \1/p'
        for how in f32:1e-5 bf16:1e-3; do
            ours "logits of $base on the GPU in ${how%:*}" 30 eval "$one" --device cuda --kl-divergence-base "$out/base.kld" --json \
                --activations "${how%:*}" --kv-cache-dtype "${how%:*}" --max-kl "${how#*:}"
        done
        show=
    done
    rm -f "$out/base.kld" "$out/u4.llmq" "$out/text"
}

memcheck() {
    part_end=$(($(date +%s) + 60 * patience))
    for sanitizer in compute-sanitizer /usr/local/cuda*/bin/compute-sanitizer /opt/cuda*/bin/compute-sanitizer; do
        command -v "$sanitizer" >/dev/null && break
        sanitizer=
    done
    [ -n "$sanitizer" ] || row memcheck skipped 0 "compute-sanitizer is not here"
    for suite in ${sanitizer:+${SUITES:-test_dev test_quant_dev test_dev_attn}}; do
        run "memcheck of $suite" 40 "$sanitizer" --target-processes all --tool memcheck --error-exitcode 9 sh "$with" "$tests" "$suite"
    done
    part_end=
}

clocks() { # NAME: what the GPU does now
    driver nvidia-smi --query-gpu=driver_version,clocks.sm,clocks.mem,power.draw,temperature.gpu --format=csv,noheader \
        >"$out/parts/$1.txt" 2>/dev/null || echo unknown >"$out/parts/$1.txt"
}
kept() { # NAME: its rows, whole, also of one that was stopped
    from=$(log "$1").out
    [ ! -s "$from" ] || [ "$(tail -c 2 "$from" | tr -d '\n')" != '}' ] || mv "$from" "$out/parts/$1.json"
    assemble
}
timed() { # NAME SECONDS ARGUMENTS
    ours "$@"
    kept "$1"
}
bench() {
    layers=${GPTQ_LAYERS:-22}
    set -- --device cuda --shape "${SHAPE:-llama-3.1-8b}" --prompt "${PROMPT:-4096}" --steps "${STEPS:-16}" --json
    clocks before
    timed kernels 90 bench kernels --device cuda --json
    timed model 110 bench model --batch "${BATCH:-1,8,32,64}" "$@"
    timed kernels_int8 45 bench kernels --device cuda --activations int8 --json
    timed model_invariant 60 bench model --batch 1 --batch-invariant "$@"
    if ! command -v "$python" >/dev/null; then
        row peers skipped 0 "no Python here"
        row gptq skipped 0 "no Python here to make its model"
    else
        run peers 45 "$python" scripts/bench/gpu_peers.py
        kept peers
        if [ "$layers" -gt 0 ] && run "noise for gptq" 30 "$python" scripts/bench/make_model.py "$out/noise" "$layers"; then
            timed gptq 120 quantize "$out/noise" -o "$out/gptq.llmq" --method gptq --calib-samples 128 --calib-len 512 \
                --device cuda --no-check --json
        fi
        rm -rf "$out/noise" "$out/gptq.llmq"
    fi
    clocks after
}

printf '%s\n%s\n' "llmq $(printf '%s\n' "$version" | sed -n 's/^version *//p'), $devices" "$(uname -srm)" | tee "$out/table.txt"
for word; do "$word"; done
assemble
echo "$passed ok, $failed failed, $other not done; $(($(date +%s) - began)) s; ${lost:+NOT }all of it: $out/result.json" |
    tee -a "$out/table.txt" 2>/dev/null
[ $failed -eq 0 ] && [ -z "$lost" ]
