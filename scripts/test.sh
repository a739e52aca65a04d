#!/bin/sh
# Installs what is missing, builds llmq without a warning and runs every test.
# The last line is "N passed, N failed". Safe to run again; later runs build only what changed.
#
# usage: sh scripts/test.sh [--no-install] [--no-asan]
#   --no-install  install nothing, neither packages nor the Python environment in .venv
#   --no-asan     leave out the second run of the unit tests under AddressSanitizer
# JOBS=n: compile with n jobs (default: the number of CPUs).
set -u
cd "$(dirname "$0")/.." || exit 1
install=yes asan=yes
for arg in "$@"; do
    case $arg in
    --no-install) install= ;;
    --no-asan) asan= ;;
    -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "test.sh: unknown option '$arg' (see --help)" >&2; exit 2 ;;
    esac
done
jobs=${JOBS:-$(nproc 2>/dev/null || echo 2)}
started=$(date +%s)
log=$(mktemp) && emulated_log=$(mktemp) && calm_log=$(mktemp) && asan_log=$(mktemp) || exit 1
beside=
trap 'rm -f "$log" "$emulated_log" "$calm_log" "$asan_log"; [ -z "$beside" ] || kill "$beside" 2>/dev/null' EXIT
trap 'exit 130' INT TERM
passed=0 failed=0

say() { echo "== $(($(date +%s) - started)) s: $*"; }
add() { # NAME LOG: add the closing line in LOG
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$2" | tail -n 1)
    if [ -z "$line" ]; then
        echo "-- $1 did not finish"
        line="0 passed, 1 failed"
    fi
    passed=$((passed + $(echo "$line" | cut -d' ' -f1)))
    failed=$((failed + $(echo "$line" | cut -d' ' -f3)))
}
finish() {
    say "done"
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ]
    exit
}
step() { # NAME COMMAND...: a check that passes or fails as one
    say "$1"
    name=$1
    shift
    if "$@" >"$log" 2>&1; then
        passed=$((passed + 1))
        tail -n 1 "$log"
    else
        failed=$((failed + 1))
        tail -n 60 "$log"
        echo "-- $name failed"
        return 1
    fi
}

# The end-to-end tests use pytest and, to be real clients, the openai package and playwright (with
# the Chromium of the system). Where they cannot
# be had, the tests that need them are skipped and say so.
python_environment() {
    [ -x .venv/bin/python ] || python3 -m venv --system-site-packages .venv || return 1
    .venv/bin/python -c 'import pytest, openai, httpx, playwright, pyte, clang_format, huggingface_hub' 2>/dev/null && return 0
    .venv/bin/python -m pip install -q --disable-pip-version-check -r tests/e2e/requirements.txt
}
if [ -n "$install" ]; then
    say "packages"
    sh scripts/install-deps.sh --test || {
        echo "test.sh: packages are missing, see above" >&2
        failed=1
        finish
    }
    say "Python environment .venv"
    python_environment >"$log" 2>&1 || {
        tail -n 3 "$log"
        echo "test.sh: no full Python environment (is the network reachable?); going on without"
    }
fi

step "build" make -j"$jobs" WERROR=-Werror all tests || finish
# Beside the others, with what of the processor they leave.
nice -n 10 scripts/ci/beside.sh "$emulated_log" "$calm_log" ${asan:+"$asan_log" "$jobs"} &
beside=$!
say "unit and end-to-end tests"
scripts/ci/run-tests.sh rest | tee "$log"
add "the tests" "$log"
step "layers" make -s layers
step "format" scripts/ci/format.sh
step "registers and shared memory of the CUDA kernels" python3 scripts/ci/ptxas.py
say "the emulated device and ARM's kernels"
wait "$beside"
beside=
cat "$emulated_log"
add "the tests of the emulated device and of ARM's kernels" "$emulated_log"
say "end-to-end tests that look at no clock"
cat "$calm_log"
add "the end-to-end tests beside" "$calm_log"
if [ -n "$asan" ]; then
    say "unit tests under AddressSanitizer and UndefinedBehaviorSanitizer"
    cat "$asan_log"
    add "the unit tests under AddressSanitizer" "$asan_log"
fi
finish
