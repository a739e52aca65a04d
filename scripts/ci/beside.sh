#!/bin/sh
# What scripts/test.sh runs beside its other steps: the tests of the emulated device and of ARM's kernels,
# end-to-end tests that look at no clock, and the unit tests under the sanitizers.
# usage: scripts/ci/beside.sh EMULATED_LOG CALM_LOG [ASAN_LOG JOBS]
set -u
cd "$(dirname "$0")/../.." || exit 1
scripts/ci/run-tests.sh emulated >"$1" 2>&1
scripts/ci/run-tests.sh calm >"$2" 2>&1
[ $# -lt 4 ] || exec make -s -j"$4" asan-quick >"$3" 2>&1
