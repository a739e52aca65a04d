#!/bin/sh
# Packs what a rented machine with a GPU needs to try llmq there, and nothing else of this one: llmq and the tests of the
# device as one program, its libraries, the C library for systems whose own is older, small models, and
# scripts/bench/gpu.sh as run.sh.
# usage: scripts/bench/gpu-bundle.sh DEVICE-TESTS OUT.tar[.gz] [WORDS]   WORDS: of what it is, for its file "about"
set -eu
cd "$(dirname "$0")/../.."
[ $# -ge 2 ] || { echo "usage: scripts/bench/gpu-bundle.sh DEVICE-TESTS OUT.tar[.gz] [WORDS]" >&2 && exit 2; }
tests=$1 out=$2 words=${3:-}
MOST=50000000 # bytes of the tarball
name=llmq-gpu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
top=$work/$name
mkdir -p "$top/build/tests" "$top/lib" "$top/libc" "$top/models/novels-6m" "$top/tests/golden/arch" "$top/scripts/bench" "$top/calib"

strip -o "$top/build/tests/device-tests" "$tests"
ln -s build/tests/device-tests "$top/llmq"
for file in $(ldd "$tests" | grep -o '/[^ ]*' | grep '\.so' | sort -u); do
    case ${file##*/} in
    libc.so* | libm.so* | libpthread.so* | libdl.so* | librt.so* | libresolv.so* | ld-linux*) cp -Lf "$file" "$top/libc/" ;;
    *) cp -Lf "$file" "$top/lib/" ;;
    esac
done

cp scripts/bench/gpu.sh scripts/bench/gpu_peers.py scripts/bench/make_model.py "$top/scripts/bench/"
cp calib/builtin_text.txt "$top/calib/"
cp -r models/novels-1m "$top/models/"
cp models/novels-6m/*.json "$top/models/novels-6m/"
cat tests/unit/test_*dev*.c tests/unit/test_forward_ranks.c tests/support/*.h >"$work/sources"
for folder in tests/golden/arch/*/; do
    folder=${folder%/}
    ! grep -q "\"${folder##*/}\"" "$work/sources" || cp -r "$folder" "$top/tests/golden/arch/"
done
for folder in $(grep -o '"tests/golden/[^%"]*["%]' "$work/sources" | tr -d '"%' | grep -v '^tests/golden/arch\b' | cut -d/ -f1-3 | sort -u); do
    cp -r "$folder" "$top/tests/golden/"
done
cp LICENSE NOTICE "$top/"
needs=$(objdump -T "$tests" "$top"/lib/* 2>/dev/null | grep -o 'GLIBC_2\.[0-9]*' | sort -t. -k2 -n | tail -n 1)
echo "$("$top/llmq" version | sed -n 's/^version */llmq /p') for $(uname -m), made $(date +%Y-%m-%d), C library ${needs:-unknown} or its own${words:+; $words}" >"$top/about"
cat >"$top/run.sh" <<'END'
#!/bin/sh
# sh run.sh: what this machine's GPU says of llmq, in 8 minutes at most; all of it is in gpu-results/ (scripts/bench/gpu.sh).
exec sh "$(dirname "$0")/scripts/bench/gpu.sh" "$@"
END
mkdir -p "$(dirname "$out")"
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner -cf - "$name" | case $out in *.gz) gzip -9 ;; *) cat ;; esac >"$out"
bytes=$(wc -c <"$out")
echo "$out: $bytes bytes, $(cat "$top/about")"
case $out in *.gz) ;; *) exit 0 ;; esac
[ "$bytes" -lt $MOST ] || { echo "gpu-bundle.sh: $out: expected less than $MOST bytes, found $bytes: fewer CUDA_ARCHS" >&2 && exit 1; }
