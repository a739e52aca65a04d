#!/bin/sh
# Fetches the sources of the libraries that the portable build links, from Debian: the newest version
# of the release that this machine has, its security fixes applied, digests checked by apt.
# usage: packaging/portable/sources.sh FOLDER   Each is unpacked to FOLDER/NAME; FOLDER/versions names them.
set -eu
here=$(CDPATH='' cd -- "$(dirname "$0")" && pwd)
mkdir -p "$1" && cd "$1"
folder=$(pwd)

# Lists of source packages of this machine's own suites, in a place of their own.
mkdir -p apt/lists apt/parts
for f in /etc/apt/sources.list.d/*.sources; do
    [ ! -f "$f" ] || sed 's/^Types:.*/Types: deb-src/' "$f" >"apt/parts/$(basename "$f")"
done
[ ! -f /etc/apt/sources.list ] || sed -n 's/^deb /deb-src /p' /etc/apt/sources.list >apt/parts/own.list
cat >apt/apt.conf <<END
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "$folder/apt/parts";
Dir::State::lists "$folder/apt/lists";
APT::Sandbox::User "";
END
export APT_CONFIG="$folder/apt/apt.conf"
[ -n "$(ls apt/lists/*Sources* 2>/dev/null)" ] || apt-get -qq update

versions() { # PACKAGE: newest first
    apt-cache showsrc "$1" 2>/dev/null | sed -n 's/^Version: //p' | sort -rV | uniq
}
fetch() { # PACKAGE: a version that the mirror still has
    for v in $(versions "$1"); do
        if apt-get -qq source --download-only "$1=$v" >/dev/null 2>&1; then
            rm -rf "$1"
            dpkg-source --no-check -x "$1_${v#*:}.dsc" "$1" >/dev/null
            echo "$1 $v" >>versions.new
            return 0
        fi
    done
    echo "sources.sh: $1: no version of it can be fetched" >&2
    return 1
}

: >versions.new
while read -r package; do
    case $package in '' | '#'*) continue ;; esac
    if [ -d "$package" ] && grep -q "^$package " versions 2>/dev/null; then
        grep "^$package " versions >>versions.new
    else
        fetch "$package"
    fi
done <"$here/packages"
mv versions.new versions
