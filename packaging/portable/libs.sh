#!/bin/sh
# Builds the libraries of the portable program as archives, into the sysroot of their compiler.
# usage: ARCH=... GLIBC=... TOOLCHAIN=FOLDER packaging/portable/libs.sh SOURCES [NAME...]
# SOURCES: made by sources.sh. TOOLCHAIN/NAME.done: that one is built. JOBS: how many at a time. NAMEs: these alone.
set -eu
here=$(CDPATH='' cd -- "$(dirname "$0")" && pwd)
# shellcheck source=packaging/portable/toolchain.sh
. "$here/toolchain.sh"
sources=$(cd "$1" && pwd) work=$TOOLCHAIN/work
shift
jobs=${JOBS:-$(nproc)}
flags="-O2 -fPIC -ffunction-sections -fdata-sections -fstack-protector-strong -ffile-prefix-map=$work=."
export CFLAGS="$flags" SOURCE_DATE_EPOCH=0 LC_ALL=C TZ=UTC

begin() { # NAME: a clean copy, in which we are then
    rm -rf "${work:?}/$1"
    mkdir -p "$work"
    cp -a "$sources/$1" "$work/$1"
    cd "$work/$1"
}
# Debian's patches touch what the shipped scripts are made of; they are newer all the same. What libtool writes
# beside the archives names folders of the machine that they would be installed on.
auto() { # ARGUMENTS of configure
    ./configure --build="$(gcc -dumpmachine)" --host="$HOST" --prefix=/usr --libdir=/usr/lib --sysconfdir=/etc \
        --disable-shared --enable-static --disable-dependency-tracking "$@" || return
    set -- V=0 ACLOCAL=: AUTOCONF=: AUTOMAKE=: AUTOHEADER=: MAKEINFO=: GTKDOCIZE=:
    make -j"$jobs" "$@" && make install DESTDIR="$SYSROOT" "$@" && rm -f "$SYSROOT"/usr/lib/*.la
}
plain() { # NAME HEADERS CFLAGS: a library of one file
    # shellcheck disable=SC2086 # words
    "$CC" $flags $3 -c ./*.c && "$AR" rcsD "$SYSROOT/usr/lib/$1.a" ./*.o || return
    mkdir -p "$SYSROOT/usr/lib/pkgconfig"
    # shellcheck disable=SC2086
    cp $2 "$SYSROOT/usr/include/"
    printf 'Name: %s\nDescription: %s\nVersion: 0\nLibs: -l%s\n' "$1" "$1" "${1#lib}" >"$SYSROOT/usr/lib/pkgconfig/$1.pc"
}

build_cjson() {
    mkdir -p "$SYSROOT/usr/include/cjson"
    cp cJSON.h "$SYSROOT/usr/include/cjson/"
    rm -f cJSON_Utils.c test.c
    plain libcjson cJSON.h ""
}
build_xxhash() {
    rm -f xxhsum.c xxh_x86dispatch.c
    plain libxxhash "xxhash.h xxh3.h" ""
}
build_utf8proc() {
    mkdir data.not && mv utf8proc_data.c data.not/
    plain libutf8proc utf8proc.h "-DUTF8PROC_STATIC -Idata.not"
}
build_pcre2() { auto --enable-jit --disable-pcre2grep-libz --disable-pcre2grep-libbz2 --disable-pcre2test-libreadline; }
build_gmp() { # Debian's sources are without the manual
    mkdir -p doc
    printf 'all install:\n' >doc/Makefile.in
    auto --enable-fat --with-pic
}
build_nettle() { auto --disable-openssl --disable-documentation --enable-fat; }
build_gnutls28() {
    auto --with-included-libtasn1 --with-included-unistring --without-p11-kit --without-idn --without-zlib --without-brotli \
        --without-zstd --without-tpm --without-tpm2 --disable-tools --disable-doc --disable-tests --disable-cxx --disable-guile \
        --disable-nls --disable-libdane --disable-full-test-suite --disable-maintainer-mode \
        --with-default-trust-store-file=/etc/ssl/certs/ca-certificates.crt || return
    # A fix of Debian 12's adds this file; the shipped Makefiles do not know it.
    if [ -f gl/gl_linkedhash_list.c ] && ! "$AR" t "$SYSROOT/usr/lib/libgnutls.a" | grep -q gl_linkedhash; then
        cd gl
        for f in gl_linkedhash_list gl_list; do # shellcheck disable=SC2086
            "$CC" $flags -DHAVE_CONFIG_H -I.. -I. -c $f.c -o $f.o && "$AR" rD "$SYSROOT/usr/lib/libgnutls.a" $f.o || return
        done
    fi
}
build_libmicrohttpd() { auto --enable-https --with-gnutls --disable-doc --disable-examples --disable-curl --disable-tools; }
build_curl() { # of its protocols, those of `llmq pull`
    auto LIBS="-lhogweed -lnettle -lgmp" --with-gnutls --enable-ipv6 --with-ca-bundle=/etc/ssl/certs/ca-certificates.crt --without-zlib \
        --without-brotli --without-zstd --without-libidn2 --without-libpsl --without-nghttp2 --without-librtmp --without-libssh2 \
        --disable-ldap --disable-ldaps --disable-ftp --disable-file --disable-dict --disable-telnet --disable-tftp --disable-pop3 \
        --disable-imap --disable-smb --disable-smtp --disable-gopher --disable-mqtt --disable-rtsp --disable-manual
}
build_ncurses() { # the terminals of most users are inside, for roots that know none
    auto --without-ada --without-cxx --without-cxx-binding --without-debug --without-manpages --without-progs --without-tests \
        --with-termlib --enable-widec --disable-db-install --disable-stripping --with-default-terminfo-dir=/usr/share/terminfo \
        --with-terminfo-dirs=/etc/terminfo:/lib/terminfo:/usr/share/terminfo:/usr/lib/terminfo \
        --with-fallbacks=linux,vt100,xterm,xterm-256color,screen,tmux-256color --enable-pc-files --with-pkg-config-libdir=/usr/lib/pkgconfig || return
    for name in ncurses tinfo; do ln -sf lib${name}w.a "$SYSROOT/usr/lib/lib$name.a"; done
}
build_libedit() { auto --disable-examples LIBS="-lncursesw -ltinfow" CPPFLAGS="-I$SYSROOT/usr/include/ncursesw -D__STDC_ISO_10646__=201103L"; }
# The processors that llmq has kernels for, chosen at run time; of LAPACK what OpenBLAS has itself.
build_openblas() {
    case $ARCH in
    x86_64) set -- TARGET=PRESCOTT DYNAMIC_LIST="HASWELL SKYLAKEX" ;;
    *) set -- TARGET=ARMV8 DYNAMIC_LIST="NEOVERSEN1" ;;
    esac
    set -- "$@" DYNAMIC_ARCH=1 NOFORTRAN=1 NO_SHARED=1 NO_LAPACKE=1 NO_AFFINITY=1 NO_WARMUP=1 NUM_THREADS=128 BUILD_SINGLE=1 \
        BUILD_DOUBLE=1 CROSS=1 HOSTCC="$CC_FOR_BUILD" CC="$CC" AR="$AR" RANLIB="$RANLIB"
    make -j"$jobs" libs "$@" && make install PREFIX=/usr DESTDIR="$SYSROOT" "$@" || return
    printf 'Name: openblas\nDescription: openblas\nVersion: 0\nLibs: -lopenblas -lm -lpthread\n' >"$SYSROOT/usr/lib/pkgconfig/openblas.pc"
}

[ $# -gt 0 ] || set -- $(grep -v '^#' "$here/packages")
for name; do
    [ ! -f "$TOOLCHAIN/$name.done" ] || continue
    echo "  LIB  $name"
    (begin "$name" && "build_$name") >"$TOOLCHAIN/$name.log" 2>&1 || {
        tail -n 30 "$TOOLCHAIN/$name.log" >&2
        echo "libs.sh: $name: failed, $TOOLCHAIN/$name.log" >&2
        exit 1
    }
    touch "$TOOLCHAIN/$name.done"
done
