# Sourced: a compiler for the processor $ARCH (x86_64, aarch64) whose C library is glibc $GLIBC, at $TOOLCHAIN.
# The compiler is this machine's gcc, so that the kernels are what a build from the sources has. The headers, the
# symbols and the start files of that glibc are those of PyPI's ziglang, which has them for every version and
# processor; it is installed into build/portable/python. Sets HOST, SYSROOT, CC, CC_FOR_BUILD, AR, RANLIB, STRIP, OBJCOPY; and
# pkg-config sees what is in SYSROOT alone.
# shellcheck shell=sh
HOST=$ARCH-linux-gnu
SYSROOT=$TOOLCHAIN/sysroot
CC_FOR_BUILD=$(command -v gcc) || { echo "portable: gcc is missing" >&2; exit 1; }
gcc=$(command -v "$HOST-gcc") || { echo "portable: $HOST-gcc is missing (apt install gcc-$(echo "$HOST" | tr _ -))" >&2; exit 1; }
bin=$TOOLCHAIN/bin

ZIG_VERSION=0.17.1 # start files are compiled by it: of another version they are other bytes

sysroot() {
    python=$(dirname "$TOOLCHAIN")/python
    [ -x "$python/bin/python" ] || "${PYTHON:-python3}" -m venv "$python" || return
    "$python/bin/python" -m pip install -q "ziglang==$ZIG_VERSION" || { echo "portable: no zig: pip cannot install it" >&2; return 1; }
    zig="$python/bin/python -m ziglang"
    cache=$TOOLCHAIN/zig include=$SYSROOT/usr/include lib=$SYSROOT/usr/lib
    mkdir -p "$cache" "$include" "$lib"
    echo 'int main(void) { return 0; }' >"$cache/empty.c"
    ZIG_GLOBAL_CACHE_DIR=$cache ZIG_LOCAL_CACHE_DIR=$cache $zig cc -target "$HOST.$GLIBC" -o "$cache/empty" "$cache/empty.c" -lm -ldl -lrt || return
    headers=$("$python/bin/python" -c 'import os, ziglang; print(os.path.dirname(ziglang.__file__))')/lib/libc/include
    family=$(echo "$ARCH" | sed s/_64//)
    for part in any-linux-any "$family-linux-any" generic-glibc "$family-linux-gnu" "$HOST"; do
        [ ! -d "$headers/$part" ] || cp -r "$headers/$part/." "$include/"
    done
    find "$cache" \( -name 'lib*.so.*' -o -name libc_nonshared.a -o -name crt1.o \) -exec cp {} "$lib/" \;
    cp "$lib/crt1.o" "$lib/Scrt1.o"
    for file in crti.o crtn.o; do cp "$("$gcc" -print-file-name=$file)" "$lib/"; done
    loader=$(readelf -dW "$lib/libld.so.2" | sed -n 's/.*soname: \[\(.*\)\]/\1/p')
    mv "$lib/libld.so.2" "$lib/$loader"
    for name in m pthread dl rt util resolv; do ln -sf "$(basename "$lib"/lib$name.so.*)" "$lib/lib$name.so"; done
    echo "GROUP ( libc.so.6 libc_nonshared.a AS_NEEDED ( $loader ) )" >"$lib/libc.so"
}
tool() { # NAME COMMAND
    printf '#!/bin/sh\nexec %s "$@"\n' "$2" >"$bin/$1"
    chmod +x "$bin/$1"
}
if [ ! -f "$TOOLCHAIN/done" ]; then
    rm -rf "$SYSROOT" && sysroot || exit 1
    mkdir -p "$bin"
    tool cc "$gcc --sysroot=$SYSROOT -nostdinc -isystem $("$gcc" -print-file-name=include) -isystem $SYSROOT/usr/include -D__GLIBC_MINOR__=${GLIBC#*.} -B$SYSROOT/usr/lib/ -L$SYSROOT/usr/lib -static-libgcc"
    tool pkg-config "env PKG_CONFIG_SYSROOT_DIR=$SYSROOT PKG_CONFIG_LIBDIR=$SYSROOT/usr/lib/pkgconfig PKG_CONFIG_PATH= $(command -v pkg-config) --static"
    touch "$TOOLCHAIN/done"
fi
CC=$bin/cc AR=$HOST-ar RANLIB=$HOST-ranlib STRIP=$HOST-strip OBJCOPY=$HOST-objcopy PKG_CONFIG=$bin/pkg-config
export CC CC_FOR_BUILD AR RANLIB STRIP OBJCOPY PKG_CONFIG
