#!/bin/sh
# Builds llmq for machines that have none of its libraries: the program and libllmq.so.0 for a glibc of 2.28 or
# newer (Debian 10, Ubuntu 20.04, RHEL 8), everything else inside. Wants Debian or Ubuntu, a network, and what
# `scripts/install-deps.sh --dist` installs. CUDA kernels are inside where nvcc is found (12.8 or newer) and is for
# that processor.
# usage: packaging/portable/build.sh ARCH   x86_64 or aarch64
# What a release of it consists of is then in build/portable/ARCH/release/; what was made stays and is used again.
set -eu
cd "$(dirname "$0")/../.."
here=packaging/portable
ARCH=$1 GLIBC=2.28 TOOLCHAIN=$(pwd)/build/portable/$1
export ARCH GLIBC TOOLCHAIN
for program in dpkg-source make m4 pkg-config tic; do
    command -v $program >/dev/null || { echo "build.sh: $program is missing (sh scripts/install-deps.sh --dist)" >&2; exit 1; }
done
sources=build/portable/sources
sh $here/sources.sh $sources
sh $here/libs.sh $sources
# shellcheck source=packaging/portable/toolchain.sh
. ./$here/toolchain.sh
if [ ! -f "$TOOLCHAIN/lapacke.done" ]; then # into OpenBLAS's archive, which has what they call
    "$CC" -O2 -fPIC -c $here/lapacke.c -o "$TOOLCHAIN/lapacke.o"
    cp $here/lapacke.h "$SYSROOT/usr/include/"
    "$AR" rD "$SYSROOT/usr/lib/libopenblas.a" "$TOOLCHAIN/lapacke.o"
    "$AR" rcsD "$SYSROOT/usr/lib/liblapacke.a"
    touch "$TOOLCHAIN/lapacke.done"
fi

out=build/portable/$ARCH/llmq
shift
nvcc=$(CC=cc CUDA_ARCHS='' scripts/make/cuda.sh | tr ' ' '\n' | sed -n 's/^nvcc=//p' | tr '~' ' ')
if [ "$ARCH" = "$(uname -m)" ] && [ -n "$nvcc" ] && $nvcc --help | grep -q -- --compress-mode; then
    # A family of GPUs each, whose newer members run it: 8.0's runs on 8.6 and 8.9, 10.0's on 10.3
    set -- NVCC="$nvcc --compress-mode size" CUDA_ARCHS="80 90a 100 120"
else
    set -- NVCC=
fi
export PATH="$TOOLCHAIN/bin:$PATH"
make -j"${JOBS:-$(nproc)}" BUILD="$out" CC="$CC" AR="$AR" LD="$HOST-ld" OBJCOPY="$OBJCOPY" SANITIZE= WERROR= PKGCF= \
    CFLAGS="-O2 -ffunction-sections -fdata-sections" LDFLAGS="-Wl,--gc-sections -Wl,-s -Wl,--build-id=none" "$@" \
    "$out/llmq" "$out/libllmq.so.0"

release=build/portable/$ARCH/release
rm -rf "$release"
mkdir -p "$release/licenses"
cp "$out/llmq" "$out/libllmq.so.0" $release/
"${PYTHON:-python3}" scripts/sbom.py "$out/llmq" $sources/versions >$release/llmq.spdx.json
sed '/^Libraries that the program links to/,$d' NOTICE >$release/NOTICE
cat $here/NOTICE >>$release/NOTICE
while read -r name version; do
    echo "    $name $version" >>$release/NOTICE
    cp "$sources/$name/debian/copyright" "$release/licenses/$name.txt"
done <$sources/versions
for name in GPL-2 GPL-3 LGPL-2.1 LGPL-3; do cp -L /usr/share/common-licenses/$name $release/licenses/$name.txt; done
chmod -R u=rwX,go=rX $release
