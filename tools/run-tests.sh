#!/bin/sh
# Runs the test suites and ends with "N passed, N failed" over all of them.
# usage: tools/run-tests.sh unit|e2e|all     (called by make; tools/test.sh is the newcomer's command)
set -u
cd "$(dirname "$0")/.."
what=${1:-all}
build=${BUILD:-build}
passed=0 failed=0
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT

count() { # NAME STATUS: add up the closing line "N passed, N failed" of a suite
    line=$(grep -oE '[0-9]+ (passed|failed)' "$log" | tr '\n' ' ')
    p=$(printf '%s\n' "$line" | grep -oE '[0-9]+ passed' | tail -n 1 | cut -d' ' -f1)
    f=$(printf '%s\n' "$line" | grep -oE '[0-9]+ failed' | tail -n 1 | cut -d' ' -f1)
    p=${p:-0} f=${f:-0}
    if [ "$2" -ne 0 ] && [ "$f" -eq 0 ]; then f=1; fi # it died before counting
    passed=$((passed + p)) failed=$((failed + f))
    if [ "$f" -ne 0 ]; then
        cat "$log"
        echo "-- $1: $p passed, $f failed (exit $2)"
    else
        echo "ok $1: $p passed"
    fi
}

if [ "$what" != e2e ]; then
    for t in "$build"/tests/test_*; do
        case $t in *.o | *.d) continue ;; esac
        [ -x "$t" ] || continue
        "$t" >"$log" 2>&1
        count "${t##*/}" $?
    done
fi
if [ "$what" != unit ]; then
    python=${PYTHON:-python3}
    [ -x .venv/bin/python ] && python=.venv/bin/python
    for suite in tests/e2e/test_*.py; do
        [ -f "$suite" ] || continue
        "$python" -m pytest -q -x --no-header -p no:cacheprovider "$suite" >"$log" 2>&1
        count "${suite##*/}" $?
    done
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
