#!/bin/sh
# Makes Debian packages of the last commit in dist/deb/: llmq, libllmq0, libllmq-dev. The packager is DEBFULLNAME and
# DEBEMAIL, else git's user.name and user.email.
# usage: packaging/deb.sh     (make deb)   wants debhelper, dpkg-dev and what the control file names
set -eu
cd "$(dirname "$0")/.."
root=$(pwd)
version=$(sed -n 's/.*LLMQ_VERSION "\(.*\)"/\1/p' base/version.h)
who="${DEBFULLNAME:-$(git config user.name || echo nobody)} <${DEBEMAIL:-$(git config user.email || echo nobody@localhost)}>"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
command -v dpkg-buildpackage >/dev/null && command -v dh >/dev/null || { echo "deb.sh: dpkg-dev or debhelper is missing" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
mkdir "$work/llmq-$version"
git archive HEAD | tar -x -C "$work/llmq-$version"
cd "$work/llmq-$version"
cp -a packaging/debian debian
sed -i "s|@MAINTAINER@|$who|" debian/control
printf 'llmq (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md.\n\n -- %s  %s\n' "$version" "$who" \
    "$(date -uR -d "@$SOURCE_DATE_EPOCH")" >debian/changelog
dpkg-buildpackage -b -us -uc -j"${JOBS:-$(nproc)}"
rm -rf "$root/dist/deb"
mkdir -p "$root/dist/deb"
mv "$work"/*.deb "$root/dist/deb/"
ls -l "$root/dist/deb"
