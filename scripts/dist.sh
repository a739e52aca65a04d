#!/bin/sh
# Makes a release in FOLDER (dist), which it empties: programs with their licences and SBOMs, the sources, and
# SHA256SUMS. A program is what packaging/portable/build.sh made for ARCH (its wheel is made too, and a package for
# npm); where no ARCH is named, ./llmq, which needs this system's libraries.
# The archives hold the commit's time and no name or rights of a user, so that the same commit, built by the same
# compiler, gives the same bytes.
# usage: scripts/dist.sh [FOLDER [ARCH...]]   (make dist, make dist-local, which build first)
set -eu
cd "$(dirname "$0")/.."
version=$(sed -n 's/.*LLMQ_VERSION "\(.*\)"/\1/p' base/version.h)
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct)}"
export SOURCE_DATE_EPOCH LC_ALL=C
[ -z "$(git status --porcelain)" ] || echo "dist: what is built here is not what is committed" >&2
out=${1:-dist}
rm -rf "$out"
[ $# -eq 0 ] || shift

archive() { # FOLDER ARCHIVE: the folder ends
    tar -c --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
        --format=ustar -C "$out" "$1" | gzip -n >"$out/$2"
    rm -r "${out:?}/$1"
}
pack() { # NAME: the folder of that name
    install -m 644 LICENSE README.md CHANGELOG.md SECURITY.md "$out/$1/"
    cp "$out/$1/llmq.spdx.json" "$out/$1.spdx.json"
    archive "$1" "$1.tar.gz"
}
npm() { # ARCH...: a package of npm's
    mkdir "$out/package"
    cpus=
    for arch; do
        cp -r "build/portable/$arch/release" "$out/package/$arch"
        rm "$out/package/$arch/libllmq.so.0"
        case $arch in x86_64) cpu=x64 ;; *) cpu=arm64 ;; esac
        cpus="$cpus${cpus:+, }\"$cpu\""
    done
    cp packaging/npm/llmq.sh packaging/npm/README.md LICENSE "$out/package/"
    sed "s/@VERSION@/$version/; s/@CPUS@/$cpus/" packaging/npm/package.json >"$out/package/package.json"
    archive package "llmq-runtime-$version.tgz"
}
if [ $# -eq 0 ]; then
    name=llmq-$version-$(uname -s | tr '[:upper:]' '[:lower:]')-$(uname -m)
    mkdir -p "$out/$name"
    install -m 755 llmq "$out/$name/llmq"
    install -m 644 NOTICE "$out/$name/"
    "${PYTHON:-python3}" scripts/sbom.py llmq >"$out/$name/llmq.spdx.json"
    pack "$name"
fi
for arch; do
    built=build/portable/$arch/release
    mkdir -p "$out/llmq-$version-linux-$arch"
    cp -r "$built/." include/llmq.h "$out/llmq-$version-linux-$arch/"
    "${PYTHON:-python3}" packaging/wheel.py "$built/llmq" "$built/libllmq.so.0" "$out" "manylinux_2_28_$arch"
    pack "llmq-$version-linux-$arch"
done
[ $# -eq 0 ] || npm "$@"
git -c tar.umask=0022 archive --format=tar --prefix="llmq-$version/" HEAD | gzip -n >"$out/llmq-$version.tar.gz"
(cd "$out" && sha256sum -- *[!S] >SHA256SUMS)
cat "$out/SHA256SUMS"
