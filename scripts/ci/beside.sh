#!/bin/sh
# What scripts/test.sh runs beside its other steps: the tests of the emulated device and of ARM's kernels,
# and the unit tests under the sanitizers.
# usage: scripts/ci/beside.sh EMULATED_LOG [ASAN_LOG JOBS]
set -u
cd "$(dirname "$0")/../.." || exit 1
scripts/ci/run-tests.sh emulated >"$1" 2>&1
[ $# -lt 3 ] || exec make -s -j"$3" asan-quick >"$2" 2>&1
