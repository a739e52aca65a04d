#!/bin/sh
# Tries what `make dist` and `make deb` made in bare roots: the program from its archive, the wheel in a fresh venv
# where the Python is 3.9 or newer, the Debian package in the release that it was built on. Each answers with the
# embedded model, and how long that took, installing included, is printed. Wants root, debootstrap and a network; a
# root that cannot be had is skipped.
# usage: packaging/portable/roots.sh [FOLDER [SUITE...]]
# FOLDER: where the roots are kept, default build/roots. SUITEs: of Debian and Ubuntu.
set -eu
cd "$(dirname "$0")/../.."
roots=${1:-build/roots}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- bullseye bookworm trixie focal jammy noble resolute
own=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
failed=

make_root() { # SUITE
    case $1 in
    focal | jammy | noble | questing | resolute) set -- "$1" "--no-check-gpg --components=main,universe" gutsy ;;
    *) set -- "$1" --include=ca-certificates sid ;;
    esac
    rm -rf "${roots:?}/$1"
    # shellcheck disable=SC2086 # words; no mirror: that of the script, which is for suites unknown here too
    debootstrap --variant=minbase $2 "$1" "$roots/$1" "" "/usr/share/debootstrap/scripts/$3" >"$roots/$1.log" 2>&1 &&
        touch "$roots/$1.done"
}
inside() { # SUITE COMMAND: as a shell of that root runs it
    chroot "$roots/$1" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive sh -ec "$2"
}
try() { # SUITE WHAT COMMAND
    start=$(date +%s%N)
    if inside "$1" "$3" >"$roots/$1.log" 2>&1; then
        echo "$1: $2: $((($(date +%s%N) - start) / 1000000)) ms: $(tr '\n' ' ' <"$roots/$1.log" | tail -c 60)"
    else
        echo "$1: $2: failed, $roots/$1.log"
        failed=yes
    fi
}
ask="run demo 'Once upon a time' --seed 1 --max-tokens 12"
mkdir -p "$roots"
for suite; do
    [ -f "$roots/$suite.done" ] || make_root "$suite" || { echo "$suite: skipped, no such root can be had"; continue; }
    rm -rf "$roots/$suite/try"
    mkdir "$roots/$suite/try"
    cp dist/*.tar.gz dist/*.whl dist/deb/*.deb "$roots/$suite/try/" 2>/dev/null || :
    cp /etc/resolv.conf "$roots/$suite/etc/"
    cp /etc/ssl/certs/ca-certificates.crt "$roots/$suite/try/trusted" # a proxy's certificate may be among them
    try "$suite" program "mkdir /try/a; tar -xzf /try/llmq-*-linux-$(uname -m).tar.gz -C /try/a --strip-components=1; /try/a/llmq $ask"
    if inside "$suite" "apt-get -q update; apt-get install -qy --no-install-recommends python3-venv;
        python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))'" >"$roots/$suite.log" 2>&1; then
        try "$suite" wheel "python3 -m venv /try/v; PIP_CERT=/try/trusted /try/v/bin/pip install -q \
            /try/llmq_runtime-*_$(uname -m).whl; /try/v/bin/llmq $ask"
        try "$suite" module "cd /; /try/v/bin/python -c 'import llmq, sys
with llmq.load(\"/root/.cache/llmq/demo\") as m: print(sys.version.split()[0], m.logits(m.tokenize(\"Once\")).shape)'"
    else
        echo "$suite: wheel: skipped, no Python 3.9 or newer"
    fi
    [ "$suite" != "$own" ] || [ ! -d dist/deb ] ||
        try "$suite" package "apt-get install -qy --no-install-recommends /try/llmq_*.deb; /usr/bin/llmq $ask"
done
[ -z "$failed" ]
