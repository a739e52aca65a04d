#!/bin/sh
# What takes long: `make check-hard` runs every step, says how long it took, and fails at the end if one did.
# usage: scripts/ci/check-hard.sh [WORD]: the steps alone whose name has WORD in it.
# LLMQ_KILLS (default 200): how often each command is killed at a moment drawn from a seed, which is printed.
# LLMQ_STOPS (default 200): how often a server under load is told to end.
# LLMQ_SWAPS (default 2000): how often models are swapped, and five times as often adapters.
# FUZZ_TIME (default 60): seconds of each fuzzer. LLMQ_MINUTES (default 10): of changed files, and of changed requests.
# PYTHON: a Python with pytest; else .venv, else python3.
set -u
cd "$(dirname "$0")/../.." || exit 1
python=${PYTHON:-}
[ -n "$python" ] || { [ -x .venv/bin/python ] && python=.venv/bin/python || python=python3; }
word=${1:-}
failed=0 times=

step() { # NAME COMMAND...
    case $1 in *"$word"*) ;; *) return ;; esac
    echo "== $1"
    name=$1 began=$(date +%s) result=ok
    shift
    "$@" || {
        failed=$((failed + 1)) result=FAILED
        echo "-- $name failed"
    }
    times="$times$(printf '%6d s  %-6s  %s' $(($(date +%s) - began)) $result "$name")
"
}

e2e() { "$python" -m pytest -q --no-header -p no:cacheprovider "$@"; }

interop() { # 5: skipped as a whole, without the packages
    e2e -rs tests/interop || [ $? -eq 5 ]
}

LLMQ_KILLS=${LLMQ_KILLS:-200}
export LLMQ_KILLS
LLMQ_SWAPS=${LLMQ_SWAPS:-2000}
export LLMQ_SWAPS
FUZZ_TIME=${FUZZ_TIME:-60}
step "quantization killed $LLMQ_KILLS times" e2e tests/e2e/test_quantize_bounded.py -k killed_again
step "quantizing on 2, 3, 4 and 8 ranks" env LLMQ_HARD=1 "$python" -m pytest -q -rs --no-header -p no:cacheprovider tests/e2e/test_ranks.py
step "every architecture through every method" env LLMQ_HARD=1 "$python" -m pytest -q --no-header -p no:cacheprovider \
    tests/e2e/test_architectures.py
step "what quantizing says that it needs" env LLMQ_HARD=1 "$python" -m pytest -q --no-header -p no:cacheprovider \
    tests/e2e/test_quantize_need.py
step "calls of every published template" env LLMQ_HARD=1 "$python" -m pytest -q --no-header -p no:cacheprovider \
    tests/server/test_forms.py
step "training of layers of every kind" env LLMQ_HARD=1 "$python" -m pytest -q --no-header -p no:cacheprovider tests/e2e/test_tune_layers.py
step "the link between two ranks cut" e2e -rs tests/soak/test_cut_link.py
step "every command killed $LLMQ_KILLS times" e2e -s tests/soak/test_kills.py
step "a server killed $LLMQ_KILLS times while it writes its KV cache to disk" e2e tests/server/test_kv_disk.py -k killed
step "every row of the emulated device's tests" env LLMQ_HARD=1 make -s test-cuda-emu
step "commands on an emulated device" env LLMQ_HARD=1 "$python" -m pytest -q --no-header -p no:cacheprovider tests/e2e/test_device.py
step "every row of attention's tests" env LLMQ_HARD=1 build/tests/test_attn
step "every row of the tests of ARM's kernels" env LLMQ_HARD=1 make -s test-neon
step "the emulated device's tests on sm_80 and sm_86" make -s test-cuda-parts
step "the bundle for rented GPUs, every step of it in an empty root" env LLMQ_HARD=1 "$python" -m pytest -q --no-header \
    -p no:cacheprovider tests/e2e/test_gpu_bundle.py
step "every fault, and a kill at every change of a file" env LLMQ_FAULTS=all "$python" -m pytest -q -s \
    --no-header -p no:cacheprovider tests/faults
step "100,000 traces through the scheduler" env LLMQ_TRACES=100000 build/tests/test_sched
step "1,000,000 operations on the KV blocks" env LLMQ_KV_OPS=1000000 build/tests/test_kv
step "20,000 requests, 30 minutes of traffic, all limits at once, clients that leave, idle connections" \
    env LLMQ_SOAK_MINUTES="${LLMQ_SOAK_MINUTES:-30}" "$python" -m pytest -q -s --no-header -p no:cacheprovider tests/soak/test_soak.py
step "$LLMQ_SWAPS swaps of models and adapters" e2e -s tests/server/test_router_soak.py
step "a server told to end, 200 times" env LLMQ_STOPS="${LLMQ_STOPS:-200}" "$python" -m pytest -q -s --no-header \
    -p no:cacheprovider tests/soak/test_stop.py
step "what llmq writes, loaded by other projects; the server under clients of others" interop
step "two builds in different folders are equal" scripts/reproducible.sh
step "every fuzzer for $FUZZ_TIME s" make -s fuzz FUZZ_TIME="$FUZZ_TIME"
step "unit tests under AddressSanitizer" make -s asan
step "end-to-end and server tests under AddressSanitizer" make -s asan-suites
step "unit tests under ThreadSanitizer" make -s tsan
step "the server's suite under ThreadSanitizer" make -s tsan-server
step "files and requests changed by chance, under AddressSanitizer" make -s asan-inputs PYTHON="$python"
step "the corpora under valgrind" make -s memcheck
step "clang-tidy" make -s tidy
step "gcc's analyzer and cppcheck" make -s analyze

printf '%s' "$times"
echo "$failed failed"
[ "$failed" -eq 0 ]
