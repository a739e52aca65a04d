#!/bin/sh
# Builds llmq twice, in folders of different names and lengths, at different times of day, with other
# settings of language, time zone and file rights, and without a compiler cache; the programs must be
# equal byte for byte. Prints the checksum of both. Takes twice the time of `make`.
# usage: scripts/reproducible.sh [FOLDER]   (make reproducible; FOLDER: where to build, default /tmp)
set -eu
cd "$(dirname "$0")/.."
at=$(mktemp -d "${1:-${TMPDIR:-/tmp}}/llmq-reproducible.XXXXXX")
trap 'rm -rf "$at"' EXIT
export CCACHE_DISABLE=1
build() { # FOLDER: gets a copy of what is under version control
    mkdir -p "$at/$1"
    git ls-files -z | tar -c --null -T - | tar -x -C "$at/$1"
    make -s -C "$at/$1" -j"$(nproc)" >"$at/log" 2>&1 || {
        tail -n 20 "$at/log"
        return 1
    }
}
(umask 022 && LC_ALL=C TZ=UTC build one)
(umask 077 && LC_ALL=C.UTF-8 TZ=Asia/Seoul build a/folder/with/a-longer-name)
(cd "$at" && sha256sum one/llmq a/folder/with/a-longer-name/llmq)
cmp "$at/one/llmq" "$at/a/folder/with/a-longer-name/llmq" || {
    (cd "$at/one" && find build -name '*.o') | while read -r object; do
        cmp "$at/one/$object" "$at/a/folder/with/a-longer-name/$object" || :
    done
    exit 1
}
