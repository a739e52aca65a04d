#!/bin/sh
# Builds llmq twice, in folders of different names and lengths, at different times of day, with other
# settings of language, time zone and file rights, as two users where root runs this, and without a compiler
# cache; what comes of it must be equal byte for byte. Prints the checksums. Takes twice the time of `make`.
# usage: scripts/reproducible.sh [FOLDER [TARGET...]]   (make reproducible)
# FOLDER: where to build, default /tmp. TARGETs: of make, default `all lib wheel`; what `dist` and `deb` make is of
# the last commit.
set -eu
cd "$(dirname "$0")/.."
case ${1-} in -*) echo "usage: scripts/reproducible.sh [FOLDER [TARGET...]]" >&2 && exit 2 ;; esac
at=$(mktemp -d "${1:-${TMPDIR:-/tmp}}/llmq-reproducible.XXXXXX")
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- all lib wheel
trap 'rm -rf "$at"' EXIT
trap 'exit 130' INT TERM
chmod 755 "$at"
: "${DEBFULLNAME:=nobody}" "${DEBEMAIL:=nobody@localhost}" # of `make deb`, which has the packager's name inside
export CCACHE_DISABLE=1 DEBFULLNAME DEBEMAIL
user= other=a/folder/with/a-longer-name
build() { # FOLDER TARGET...: in a clone, with what is under version control as it is here
    folder=$at/$1 top=$at/${1%%/*}
    shift
    mkdir -p "$folder"
    git clone -q . "$folder"
    git ls-files -z | tar -c --null -T - | tar -x --no-same-permissions -C "$folder"
    [ -z "$user" ] || chown -R "$user:$user" "$top"
    for target; do # one after another: `make dist` empties dist/
        # shellcheck disable=SC2086 # words
        ${user:+setpriv --reuid=$user --regid=$user --clear-groups env HOME=$folder} \
            make -s -C "$folder" -j"${JOBS:-$(nproc)}" "$target" >"$at/log" 2>&1 || {
            tail -n 20 "$at/log"
            return 1
        }
    done
}
products() { # FOLDER
    (cd "$at/$1" && for f in llmq build/libllmq.a build/libllmq.so.0 dist; do
        [ ! -e $f ] || find $f -type f -exec sha256sum {} +
    done | LC_ALL=C sort -k 2)
}
(umask 022 && export LC_ALL=C TZ=UTC && build one "$@")
[ "$(id -u)" -ne 0 ] || ! command -v setpriv >/dev/null || user=65534
(umask 077 && export LC_ALL=C.UTF-8 TZ=Asia/Seoul && build $other "$@")
products one | tee "$at/one.sums"
[ -s "$at/one.sums" ] || { echo "reproducible.sh: $*: nothing was made" >&2; exit 1; }
products $other | diff "$at/one.sums" - || {
    (cd "$at/one" && find build \( -name '*.o' -o -name '*.a' -o -name llmq -o -name '*.so.0' \) -type f) | while read -r object; do
        cmp "$at/one/$object" "$at/$other/$object" || :
    done
    exit 1
}
