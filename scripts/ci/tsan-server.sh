#!/bin/sh
# The server's conformance suite against a server under ThreadSanitizer (make tsan-server builds it): no
# data race may be seen. LLMQ_CHAOS (default 8): rounds of clients that break off, 192 each, 64 at a time.
# PYTHON: a Python with pytest; else .venv, else python3.
set -u
cd "$(dirname "$0")/../.." || exit 1
python=${PYTHON:-}
[ -n "$python" ] || { [ -x .venv/bin/python ] && python=.venv/bin/python || python=python3; }
rm -f build-tsan/race.*
export BUILD=build-tsan LLMQ="$PWD/build-tsan/llmq" LLMQ_CHAOS="${LLMQ_CHAOS:-8}"
export TSAN_OPTIONS="log_path=$PWD/build-tsan/race history_size=7"
"$python" -m pytest -q --no-header -p no:cacheprovider tests/server
failed=$?
for race in build-tsan/race.*; do
    [ -e "$race" ] || continue
    cat "$race"
    failed=1
done
exit "$failed"
