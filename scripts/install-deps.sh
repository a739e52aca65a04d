#!/bin/sh
# Installs what llmq needs to be built, on Debian or Ubuntu. Does nothing when all is there.
#
# usage: sh scripts/install-deps.sh [--test] [--dev] [--dist] [--check]
#   (nothing)  compiler, make, libraries, curl
#   --test     also Python with venv and pytest, for the end-to-end tests, and a C++ compiler
#   --dev      also clang, clang-format, clang-tidy, cppcheck, shellcheck, valgrind
#   --dist     also what `make dist` and `make deb` take
#   --check    only say what is missing (exit 1 if anything is)
set -eu

what=build check=
for arg in "$@"; do
    case $arg in
    --test) what="$what test" ;;
    --dev) what="$what dev" ;;
    --dist) what="$what dist" ;;
    --check) check=yes ;;
    -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "install-deps: unknown option '$arg' (see --help)" >&2; exit 2 ;;
    esac
done

has() { command -v "$1" >/dev/null 2>&1; }
lib() { has pkg-config && pkg-config --exists "$1"; }
header() { has cc && echo "#include <$1>" | cc -E -x c - >/dev/null 2>&1; }
linkable() { has cc && echo 'int main(void){return 0;}' | cc -x c - "-l$1" -o /dev/null 2>/dev/null; }
can_venv() { has python3 && python3 -c 'import ensurepip, venv' 2>/dev/null; }
optional() { # PACKAGE PROGRAM: tests that need it are skipped where it cannot be had
    has "$2" || wanted="$wanted $1"
}
pytest_there() { has python3 && { python3 -c 'import pytest' 2>/dev/null || [ -x .venv/bin/pytest ]; }; }

missing= wanted=
need() { # PACKAGE CHECK...: note the package when the check fails
    package=$1
    shift
    "$@" || missing="$missing $package"
}
cd "$(dirname "$0")/.."
need gcc has cc
need libc6-dev header stdlib.h
need make has make
need pkg-config has pkg-config
need libcjson-dev lib libcjson
need libxxhash-dev lib libxxhash
need libopenblas-dev lib openblas
need liblapacke-dev linkable lapacke
need libpcre2-dev lib libpcre2-8
need libutf8proc-dev lib libutf8proc
need libmicrohttpd-dev lib libmicrohttpd
need libcurl4-openssl-dev lib libcurl
need libgnutls28-dev lib gnutls
need nettle-dev lib nettle
lib libedit || wanted="$wanted libedit-dev" # line editing in `llmq chat`; built without it where it cannot be had
need curl has curl
need ca-certificates test -e /etc/ssl/certs
case $what in *test*)
    need g++ has c++ # the CUDA kernels compiled for the host (make test-cuda-emu)
    need python3 has python3
    need python3-venv can_venv
    need python3-pytest pytest_there
    optional git-lfs git-lfs
    optional docker-registry docker-registry
    optional openssl openssl
    optional openmpi-bin mpirun
    # the NEON kernels (make test-neon)
    optional "gcc-aarch64-linux-gnu libc6-dev-arm64-cross" aarch64-linux-gnu-gcc
    optional qemu-user qemu-aarch64
    ;;
esac
case $what in *dev*)
    need clang has clang
    need clang-format has clang-format
    need clang-tidy has clang-tidy
    need cppcheck has cppcheck
    need valgrind has valgrind
    need shellcheck has shellcheck
    ;;
esac
case $what in *dist*)
    need git has git
    need dpkg-dev has dpkg-source
    need debhelper has dh
    need m4 has m4
    need ncurses-bin has tic
    need python3 has python3
    need python3-venv can_venv
    for gcc in aarch64-linux-gnu x86_64-linux-gnu; do
        need "gcc-$(echo $gcc | tr _ -)" has $gcc-gcc
    done
    case $(uname -m) in
    aarch64) need libc6-dev-amd64-cross test -e /usr/x86_64-linux-gnu/lib/crti.o ;;
    *) need libc6-dev-arm64-cross test -e /usr/aarch64-linux-gnu/lib/crti.o ;;
    esac
    ;;
esac

try_wanted() { # prints nothing on success; tests that use them are skipped
    [ -n "$wanted" ] && [ -z "$check" ] && has apt-get || return 0
    as_root=
    [ "$(id -u)" -eq 0 ] || as_root="sudo -n"
    # shellcheck disable=SC2086 # lists of words
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $wanted \
        >/dev/null 2>&1 || echo "install-deps: not available, what uses them is left out:$wanted"
}
if [ -z "$missing" ]; then
    try_wanted
    echo "install-deps: nothing is missing"
    exit 0
fi
echo "install-deps: missing:$missing"
[ -z "$check" ] || exit 1

give_up() {
    cat >&2 <<END
install-deps: $1
Install these packages (Debian and Ubuntu names) yourself and run this again:
   $missing
As root on Debian or Ubuntu that is:
    apt-get update && apt-get install -y --no-install-recommends$missing
END
    exit 1
}
has apt-get || give_up "not Debian or Ubuntu (no apt-get)"
as_root=
if [ "$(id -u)" -ne 0 ]; then
    has sudo || give_up "not root, and there is no sudo"
    # Without a terminal sudo cannot ask for a password.
    [ -t 0 ] || sudo -n true 2>/dev/null || give_up "not root, and sudo wants a password"
    as_root=sudo
fi
log=$(mktemp)
. scripts/progress.sh
trap 'work_stop; rm -f "$log"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
[ -z "$as_root" ] || sudo true || give_up "sudo said no" # asks for the password here, not under the moving line
waiting() { echo "installing: $(clock "$seconds")  $(tail -n 1 "$log" | tr -cd '[:print:]' | cut -c 1-60)"; }
apt() { $as_root env DEBIAN_FRONTEND=noninteractive apt-get "$@"; }
echo "install-deps: installing with apt-get${as_root:+ (sudo)}; one to three minutes, most of it download"
work "$log" waiting apt update -q ||
    echo "install-deps: apt-get update failed; trying with the package lists that are here" >&2
# shellcheck disable=SC2086 # a list of package names
work "$log" waiting apt install -y -q --no-install-recommends $missing || {
    tail -n 15 "$log" >&2
    give_up "apt-get could not install them (its last lines are above; is the network reachable?)"
}
try_wanted
echo "install-deps: done"
