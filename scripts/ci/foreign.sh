#!/bin/sh
# Compiles every source file for other systems, none of which is here: nothing is linked or run. The compiler and the
# systems' headers are PyPI's ziglang (PYTHON names the Python that has it); those of the libraries are this
# machine's, in a folder of their own, so that its C library is not seen. Without ziglang it says so and fails
# nothing.
# usage: scripts/ci/foreign.sh [TARGET...]   (make foreign) TARGET: as zig names it (aarch64-macos).
# A line for each: "TARGET: N of N files compile".
set -u
cd "$(dirname "$0")/../.." || exit 1
[ $# -gt 0 ] || set -- aarch64-macos
zig=$("${PYTHON:-python3}" -c 'import os, ziglang; print(os.path.join(os.path.dirname(ziglang.__file__), "zig"))' 2>/dev/null) || {
    echo "SKIPPED: no ziglang: pip install ziglang, and PYTHON names that Python"
    exit 0
}
top=$(pwd)/build-foreign
mkdir -p "$top/include"
export ZIG_GLOBAL_CACHE_DIR="$top/cache" ZIG_LOCAL_CACHE_DIR="$top/cache"

# What pkg-config and the compiler know of the libraries. OpenBLAS's configuration says for which system it was built.
for name in cjson curl gnutls nettle cblas.h lapacke.h lapack.h lapacke_mangling.h microhttpd.h openblas_config.h pcre2.h utf8proc.h xxh3.h xxhash.h histedit.h; do
    for at in $(pkg-config --cflags-only-I libcjson openblas libcurl gnutls nettle libedit | sed 's/-I//g') /usr/include \
        "/usr/include/$(gcc -dumpmachine)"; do
        [ ! -e "$at/$name" ] || { cp -rL "$at/$name" "$top/include/" && break; }
    done
done
sed -i 's/^#define OPENBLAS_OS_LINUX.*//' "$top/include/openblas_config.h"

failed=0
for target; do
    build=build-foreign/$target
    mkdir -p "$build"
    printf '#!/bin/sh\nexec "%s" cc -target %s "$@"\n' "$zig" "$target" >"$build/cc"
    chmod +x "$build/cc"
    set -- BUILD="$build" CC="$(pwd)/$build/cc" CFLAGS='-O1 -D_DARWIN_C_SOURCE -Wno-unknown-warning-option' RELEASE= SANITIZE= NVCC= \
        PKGCF="-isystem $top/include" EDITCF= CUOBJS= \
        ISA_neon_dot=-mcpu=generic+v8_2a+dotprod ISA_neon_i8mm=-mcpu=generic+v8_2a+i8mm ISA_neon_bf=-mcpu=generic+v8_2a+bf16
    make -s -k -j"${JOBS:-$(nproc)}" "$@" objects >"$build/log" 2>&1
    all=$(make -s -n "$@" objects -B | grep -c ' -MMD -MP -c -o ')
    got=$(find "$build" -name '*.o' | wc -l)
    echo "$target: $got of $all files compile"
    [ "$got" -eq "$all" ] || { grep -h 'error:' "$build/log" | head -20; failed=1; }
done
exit $failed
