#!/bin/sh
# Makes a release in FOLDER (dist), which it empties: the program with its licences and its SBOM, the
# sources, and SHA256SUMS.
# The archives hold the commit's time and no name of a user, so that the same commit, built by the same
# compiler, gives the same bytes.
# usage: scripts/dist.sh [FOLDER]   (make dist, which builds first)
set -eu
cd "$(dirname "$0")/.."
version=$(sed -n 's/.*LLMQ_VERSION "\(.*\)"/\1/p' base/version.h)
name=llmq-$version-$(uname -s | tr '[:upper:]' '[:lower:]')-$(uname -m)
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct)}"
export SOURCE_DATE_EPOCH
[ -z "$(git status --porcelain)" ] || echo "dist: what is built here is not what is committed" >&2
out=${1:-dist}
rm -rf "$out"
mkdir -p "$out/$name"
install -m 755 llmq "$out/$name/llmq"
install -m 644 LICENSE NOTICE README.md CHANGELOG.md SECURITY.md "$out/$name/"
"${PYTHON:-python3}" scripts/sbom.py llmq >"$out/$name/llmq.spdx.json"
cp "$out/$name/llmq.spdx.json" "$out/$name.spdx.json"
tar -c --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=ustar \
    -C "$out" "$name" | gzip -n >"$out/$name.tar.gz"
rm -r "${out:?}/$name"
git archive --format=tar --prefix="llmq-$version/" HEAD | gzip -n >"$out/llmq-$version.tar.gz"
(cd "$out" && sha256sum -- *.tar.gz *.json >SHA256SUMS)
cat "$out/SHA256SUMS"
