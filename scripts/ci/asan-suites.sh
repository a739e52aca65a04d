#!/bin/sh
# The end-to-end tests and the server's suite under AddressSanitizer, UndefinedBehaviorSanitizer and
# LeakSanitizer (make asan-suites builds what they run): whatever one of them sees, in any process, is
# a failure. Each file's result and time is printed; what cannot run so is skipped and says why.
# usage: scripts/ci/asan-suites.sh [FILE or FOLDER of tests]...   PYTHON: as for scripts/ci/tsan-server.sh.
set -u
cd "$(dirname "$0")/../.." || exit 1
python=${PYTHON:-}
[ -n "$python" ] || { [ -x .venv/bin/python ] && python=.venv/bin/python || python=python3; }
[ $# -gt 0 ] || set -- tests/e2e/test_*.py tests/server
rm -f build-asan/found.*
export BUILD=build-asan LLMQ="$PWD/build-asan/llmq"
export ASAN_OPTIONS="log_path=$PWD/build-asan/found:exitcode=99:allocator_may_return_null=1:detect_stack_use_after_return=0"
export UBSAN_OPTIONS="log_path=$PWD/build-asan/found:exitcode=99:print_stacktrace=1"
failed=0
for suite in "$@"; do
    echo "-- $suite"
    "$python" -m pytest -q -rs --no-header -p no:cacheprovider "$suite" || failed=1
    for report in build-asan/found.*; do
        [ -e "$report" ] || continue
        cat "$report"
        rm -f "$report"
        failed=1
    done
done
exit "$failed"
