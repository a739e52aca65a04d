#!/bin/sh
# Says what the Makefile compiles kernels/cuda/ with, in words that make can take apart, each NAME=VALUE,
# with ~ for a space:
#
#   nvcc     the compiler, with -ccbin where the system's own is newer than it takes; empty: no CUDA
#   runtime  libcudart_static.a
#   archs    what machine code is made for: those of CUDA_ARCHS, or 80 and this machine's GPUs, that nvcc knows.
#            90a may be spelled sm_90a, compute_90a or 9.0a; native: this machine's GPUs
#   found    the same in words, for the user; or
#   missing  why there is none
#
# usage: CC=cc CUDA_ARCHS= scripts/make/cuda.sh [NVCC]   NVCC empty: none is wanted
# Without NVCC it is looked for: CUDA_HOME, CUDA_PATH, PATH, /usr/local/cuda, the newest /usr/local/cuda-*,
# /opt/cuda, and where Debian's nvidia-cuda-toolkit has it. A program that does not answer within LLMQ_CUDA_WAIT seconds
# (20) is taken as not there. LLMQ_CUDA_ROOT stands before these folders (tests).
set -u
oldest=12.0 # before it graphs are made by another call
root=${LLMQ_CUDA_ROOT-} wait=${LLMQ_CUDA_WAIT:-20}

hide() { echo "$*" | tr ' ' '~'; }
without() {
    echo "missing=$(hide "$1")"
    exit 0
}

bounded() { # COMMAND...
    if command -v timeout >/dev/null; then timeout -k 2 "$wait" "$@"; else "$@"; fi
}

find_nvcc() {
    for top in "${CUDA_HOME-}" "${CUDA_PATH-}"; do
        [ -z "$top" ] || [ ! -x "$top/bin/nvcc" ] || { echo "$top/bin/nvcc"; return; }
    done
    command -v nvcc && return
    # shellcheck disable=SC2012 # names of versions
    newest=$(ls -d "$root"/usr/local/cuda-*/bin/nvcc 2>/dev/null | sort -V | tail -n 1)
    for nvcc in "$root/usr/local/cuda/bin/nvcc" "$newest" "$root/opt/cuda/bin/nvcc" \
        "$root/usr/lib/nvidia-cuda-toolkit/bin/nvcc"; do
        [ -z "$nvcc" ] || [ ! -x "$nvcc" ] || { echo "$nvcc"; return; }
    done
}

if [ $# -eq 0 ]; then
    nvcc=$(find_nvcc)
    [ -n "$nvcc" ] || without "no nvcc was found in CUDA_HOME, PATH, /usr/local/cuda* or /opt/cuda"
elif [ -z "$1" ]; then
    without "NVCC= or a sanitizer left it out"
else
    nvcc=$1
fi
case $nvcc in *" "*) [ ! -x "$nvcc" ] || without "$nvcc: expected a path without a space, which make cannot take" ;; esac
program=${nvcc%% *} # options may follow
# shellcheck disable=SC2086 # options may follow
told=$(bounded $nvcc --version 2>/dev/null)
case $? in 124 | 137) without "$program does not answer within $wait s" ;; esac
version=$(echo "$told" | sed -n 's/.*release \([0-9.]*\).*/\1/p')
[ -n "$version" ] || without "$program does not say its version"
older() { [ "$1" != "$2" ] && [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }
older "$version" $oldest && without "$program is of CUDA $version, $oldest or later is needed"

# shellcheck disable=SC2086
dryrun=$(bounded $nvcc --dryrun -x cu /dev/null 2>&1)
top=$(echo "$dryrun" | sed -n 's/.*TOP=//p')
[ -n "$top" ] || without "$nvcc fails: $(echo "$dryrun" | head -n 1 | tr -cd 'a-zA-Z0-9_ :.,/+-')"

# ---- the host's compiler: what is too new for it is refused by a header ----
most=$(cat "$top"/include/crt/host_config.h "$top"/targets/*/include/crt/host_config.h "$root"/usr/include/crt/host_config.h \
    2>/dev/null | sed -n 's/^#if __GNUC__ > \([0-9]*\).*/\1/p' | head -n 1)
host=
case " $nvcc " in *" -ccbin"* | *" --compiler-bindir"*) most= ;; esac
[ -z "${NVCC_CCBIN-}" ] || most=
if [ -n "$most" ]; then
    has=$(g++ -dumpversion 2>/dev/null | cut -d. -f1)
    if [ -z "$has" ] || [ "$has" -gt "$most" ]; then
        n=$most
        while [ "$n" -ge 9 ] && ! command -v "g++-$n" >/dev/null; do n=$((n - 1)); done
        [ "$n" -ge 9 ] ||
            without "nvcc of CUDA $version takes g++ up to $most, found ${has:-none}: install g++-$most"
        host=g++-$n
        nvcc="$nvcc -ccbin $host"
    fi
fi

# ---- the runtime ----
set -- "$top"/lib64/libcudart_static.a "$top"/lib/libcudart_static.a "$top"/targets/*/lib/libcudart_static.a \
    "$(${CC:-cc} -print-file-name=libcudart_static.a)"
runtime=
for file; do
    [ -n "$runtime" ] || [ "${file#/}" = "$file" ] || [ ! -f "$file" ] || runtime=$file
done
[ -n "$runtime" ] ||
    without "nvcc of CUDA $version is here, libcudart_static.a is not: neither in $top (lib64, lib, targets) nor where ${CC:-cc} looks"

# ---- architectures ----
# shellcheck disable=SC2086
known=" $(bounded $nvcc --list-gpu-code 2>/dev/null | sed 's/^sm_//' | tr '\n' ' ')"
knows() { # 90a is asked for as 90; there is no 89a, no 90f, and none of those before 12.9
    least=80
    case $1 in
    *a) least=90 ;;
    *f)
        least=100
        older "$version" 12.9 && return 1
        ;;
    esac
    case $known in *" ${1%[af]} "*) [ "${1%[af]}" -ge $least ] ;; *) return 1 ;; esac
}
note=
find_own() { # this machine's GPUs: own, and in note why there are none
    own=$(bounded nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null)
    case $? in 124 | 137) note="; nvidia-smi does not answer within $wait s" ;; esac
    own=$(echo "$own" | tr -d . | grep -x '[0-9]*' | sed 's/^90$/90a/' | sort -un)
}
want=
set -f
for a in $(echo "${CUDA_ARCHS-}" | tr ',;' '  '); do
    case $a in
    native)
        find_own
        [ -n "$own" ] || own=80 note="${note:-; native: nvidia-smi names no GPU here}"
        want="$want $own"
        ;;
    sm_[0-9]* | compute_[0-9]* | [0-9]*.[0-9]*) want="$want $(echo "${a#*_}" | tr -d .)" ;;
    *) want="$want $a" ;;
    esac
done
if [ -z "$want" ]; then
    find_own
    want=80
    for a in $own; do
        [ "${a%a}" -le 80 ] || want="$want $a"
    done
fi
archs='' dropped='' early=''
for a in $want; do
    case " $archs " in *" $a "*) continue ;; esac
    if knows "$a"; then
        archs="$archs${archs:+ }$a"
    elif [ "$a" -lt 80 ] 2>/dev/null; then
        early="$early${early:+, }$a"
    else
        dropped="$dropped${dropped:+, }$a"
    fi
done
knows 90a && knows 80 || without "nvcc of CUDA $version makes no code for 80 and 90a"
found="$version ($program), code for ${archs:-none}, and for later GPUs by their driver${dropped:+; nvcc does not know $dropped}"
found="$found${early:+; kernels need 80 or later, not $early}"
found="$found$note${host:+; with $host, as nvcc takes g++ up to $most}"
echo "nvcc=$(hide "$nvcc") runtime=$runtime archs=$(hide "$archs") found=$(hide "$found")"
