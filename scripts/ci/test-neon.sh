#!/bin/sh
# The tests of the kernels, compiled for 64-bit ARM and run in an emulator of processors with and
# without the dot product and the matrix products. Where compiler or emulator is missing it says so and fails nothing.
# usage: scripts/ci/test-neon.sh   (make test-neon; make test runs it too). The last line is
# "N passed, N failed". NEON_CC, QEMU_ARM: the compiler and the emulator.
set -u
cd "$(dirname "$0")/../.." || exit 1
cc=${NEON_CC:-aarch64-linux-gnu-gcc} qemu=${QEMU_ARM:-qemu-aarch64}
jobs=${JOBS:-$(nproc 2>/dev/null || echo 2)}
build="build-neon"
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT

if ! echo 'int main(void){return 0;}' | "$cc" -static -x c - -o /dev/null 2>/dev/null; then
    why="no $cc with a C library"
elif ! "$qemu" --version >/dev/null 2>&1; then
    why="no $qemu"
fi
if [ -n "${why:-}" ]; then
    echo "SKIPPED: the NEON kernels are not run here: $why"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi

# Kernels and what they need, which is no library (the linker drops what else is in their files); -O1 compiles five times as fast as -O2.
# shellcheck disable=SC2016 # make expands it
sources='$(wildcard kernels/*.c kernels/*/*.c base/base.c base/machine.c base/cpus.c base/os_linux.c base/locale.c formats/tensor/*.c quantize/methods/lut4.c quantize/methods/rows_ref.c quantize/methods/grid.c)'
tests="test_mm test_mm_blocks test_ops test_attn test_tiles test_rows test_pool test_scan"
# shellcheck disable=SC2086,SC2046 # a list of words
make -s -j"$jobs" BUILD=$build CC="$cc" CFLAGS='-O1 -ffunction-sections -fdata-sections' WERROR= SANITIZE= PKGCF= NVCC= TOOLSRCS= \
    SRCS="$sources" ALLLD='-static -Wl,--gc-sections' LIBS='-lm -pthread' \
    $(printf "$build/tests/%s " $tests) || {
    echo "0 passed, 1 failed"
    exit 1
}

passed=0 failed=0
run() { # CPU FAMILIES TEST NAME...: tests of one program, all where none is named
    cpu=$1 families=$2 program=$3
    shift 3
    LLMQ_TEST_SMALL=1 LLMQ_TEST_FAMILIES=$families timeout -k 10 300 \
        "$qemu" -cpu "$cpu" "$build/tests/$program" "$@" >"$log" 2>&1
    status=$?
    p=$(sed -n 's/^\([0-9]*\) passed, .*/\1/p' "$log") f=$(sed -n 's/.* \([0-9]*\) failed$/\1/p' "$log")
    if [ "$status" -ne 0 ]; then
        cat "$log"
        echo "-- $program on $cpu: exit $status"
        [ "${f:-0}" -gt 0 ] || f=1
    fi
    passed=$((passed + ${p:-0})) failed=$((failed + ${f:-0}))
}
# What takes minutes in an emulator, and tests the reference or the threads alone, is left out.
newest="ref neon neon-dot neon-i8mm neon-bf16"
run max "$newest" test_mm_blocks every_family_and_every_company_gives_the_same_bytes
run max "$newest" test_tiles
run max "$newest" test_rows
run max "$newest" test_pool
run max "$newest" test_scan
run max "$newest" test_ops row_operations_agree_with_double_precision every_family_gives_the_same_bits \
    every_family_that_this_cpu_has_can_be_chosen an_unknown_family_is_refused_by_name
run max "$newest" test_attn each_step_gives_the_same_bits_in_every_family \
    a_cached_row_is_what_its_type_can_hold in_bf16_it_agrees_with_the_formula_in_the_same_bytes
run max "$newest" test_mm every_family_agrees_with_the_reference weights_of_different_needs_share_one_call \
    jobs_run_together_give_the_bytes_of_each_alone a_row_with_nan_spoils_itself_alone \
    a_row_has_the_same_bytes_alone_and_among_others tables_at_their_limits_give_the_same_integers \
    codes_at_their_limits_give_the_same_integers
run cortex-a76 "ref neon neon-dot" test_ops every_family_that_this_cpu_has_can_be_chosen
run cortex-a76 "ref neon neon-dot" test_mm weights_of_different_needs_share_one_call
run cortex-a72 "ref neon" test_ops every_family_that_this_cpu_has_can_be_chosen
run cortex-a72 "ref neon" test_mm weights_of_different_needs_share_one_call
run cortex-a72 "ref neon" test_attn each_step_gives_the_same_bits_in_every_family
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
