#!/bin/sh
# Runs the test suites and ends with "N passed, N failed" over all of them.
# usage: scripts/ci/run-tests.sh unit|emulated|calm|e2e|server|clients|all|rest   (called by make; scripts/test.sh is the
# newcomer's command). server: the conformance suite of the HTTP API, docs/conformance.md. emulated: tests of the
# emulated device and of ARM's kernels; calm: end-to-end tests that take processor time and look at no clock. Both are
# what scripts/test.sh runs beside the others; rest: all but those.
# BUILD: the build folder of the unit tests. PYTHON: the Python with pytest; else .venv, else python3.
set -u
cd "$(dirname "$0")/../.." || exit 1
what=${1:-all}
build=${BUILD:-build}
calm="bpw convert_shares eval gguf_architectures model_free mtp published"
calm="$calm quantize_moe quantize_reproducible quantize_to tune_layers writers"
passed=0 failed=0 skipped=0
log=$(mktemp) || exit 1
own= # where pytest keeps files while another runs
case $what in emulated | calm) own=$(mktemp -d) || exit 1 ;; esac
trap 'rm -rf "$log" "$own"' EXIT

number() { # WORD: the number before it in the suite's closing line, or 0
    n=$(printf '%s\n' "$closing" | grep -oE "[0-9]+ $1" | tail -n 1 | cut -d' ' -f1)
    echo "${n:-0}"
}

count() { # NAME STATUS: add up the closing line of a suite; its seconds are said
    took=$(($(date +%s) - began))
    closing=$(grep -E '[0-9]+ (passed|failed|error|skipped)' "$log" | tail -n 1)
    p=$(number passed) s=$(number skipped)
    f=$(($(number failed) + $(number error)))
    if [ "$2" -ne 0 ] && [ "$f" -eq 0 ]; then f=1; fi # it died before counting
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    if [ "$f" -ne 0 ]; then
        cat "$log"
        echo "-- $1: $p passed, $f failed (exit $2), $took s"
    elif [ "$s" -ne 0 ]; then
        echo "ok $1: $p passed, $s skipped, $took s"
        grep -E '^SKIPPED' "$log"
    else
        echo "ok $1: $p passed, $took s"
    fi
}

run() { # at most an hour each: only what hangs takes so long
    began=$(date +%s)
    timeout -k 10 3600 "$@" >"$log" 2>&1
}

case $what in unit | emulated | all | rest)
    for t in "$build"/tests/test_*; do
        case $t in *.o | *.d) continue ;; esac
        name=${t##*/}
        [ -x "$t" ] || continue
        [ -f "tests/unit/$name.c" ] || continue # left over from a test that has gone
        case $name,$what in
        test_dev_*,rest | *_dev,rest | test_forward_ranks,rest) continue ;;
        test_dev_*,* | *_dev,* | test_forward_ranks,*) ;;
        *,emulated) continue ;;
        esac
        run "$t"
        count "$name" $?
    done
    ;;
esac
case $what in unit | emulated | all) # on parts with less shared memory for a block; the rest: check-hard.sh
    for cc in 80 86; do
        for t in "$build"/tests/test_dev "$build"/tests/test_dev_attn; do
            [ -x "$t" ] || continue
            run env LLMQ_EMULATED_CC=$cc "$t"
            count "${t##*/} on sm_$cc" $?
        done
    done
    ;;
esac
if [ "$what" = all ] || [ "$what" = emulated ]; then
    run scripts/ci/test-neon.sh
    count "NEON kernels, emulated" $?
fi
if [ "$what" != unit ]; then
    python=${PYTHON:-}
    [ -n "$python" ] || [ ! -x .venv/bin/python ] || python=.venv/bin/python
    python=${python:-python3}
    if "$python" -c 'import pytest' 2>/dev/null; then
        suites="tests/e2e/test_*.py tests/faults tests/server"
        [ "$what" != calm ] || suites=$(for s in $calm; do echo "tests/e2e/test_$s.py"; done)
        for suite in $suites; do
            case $what,$suite in
            emulated,tests/e2e/test_device.py) ;;
            emulated,* | rest,tests/e2e/test_device.py) continue ;;
            esac
            name=${suite#tests/e2e/test_}
            case "$what, $calm " in rest,*" ${name%.py} "*) continue ;; esac
            [ "$what" != server ] || [ "$suite" = tests/server ] || continue
            [ "$what" != e2e ] || [ "$suite" != tests/server ] || continue
            run "$python" -m pytest -q -rs --no-header -p no:cacheprovider ${own:+--basetemp="$own/t"} "$suite"
            count "${suite##*/}" $?
        done
    else
        echo "SKIPPED: every end-to-end test, because $python has no pytest" \
            "(sh scripts/test.sh installs it where it can)"
        skipped=$((skipped + 1))
    fi
fi
[ "$skipped" -eq 0 ] || echo "$skipped skipped"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
