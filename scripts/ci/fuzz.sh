#!/bin/sh
# Fuzzes the parsers with clang's libFuzzer, under AddressSanitizer and UndefinedBehaviorSanitizer.
# Every tests/fuzz/fuzz_NAME.c is one harness; tests/fuzz/corpus/NAME/ holds its seeds.
#
# usage: scripts/ci/fuzz.sh SECONDS [NAME...]     (make fuzz FUZZ_TIME=30)
# What is found lies in build-fuzz/NAME-*; run build-fuzz/fuzz_NAME FILE to see it again.
set -u
cd "$(dirname "$0")/../.." || exit 1
seconds=${1:-30}
[ $# -eq 0 ] || shift
command -v clang >/dev/null || {
    echo "fuzz.sh: needs clang (sh scripts/install-deps.sh --dev)" >&2
    exit 1
}
flags='-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined'
objects= # the parsers and what they stand on: no kernels, which take minutes under sanitizers
for source in base/*.c formats/*/*.c formats/*/*/*.c runtime/tokenizer/*.c runtime/chat/tmpl*.c runtime/grammar/*.c \
    runtime/api/api_params*.c runtime/api/api_error.c runtime/api/api_parts.c runtime/api/api_grammar.c runtime/api/api_body.c runtime/api/api_*_in.c runtime/api/api_ollama_template.c runtime/api/api_prompt.c runtime/api/api_store*.c runtime/api/api_answer.c runtime/api/multipart.c runtime/api/api_calls.c runtime/api/api_note.c runtime/api/api_samplers.c runtime/api/api_thinking.c runtime/engine/stages/*.c runtime/engine/stage.c runtime/chat/chat_rules.c runtime/api/metrics.c runtime/chat/chat_out.c runtime/chat/chat_call.c runtime/chat/chat_form.c runtime/chat/chat_value.c \
    runtime/http/*.c runtime/model/kv*.c tools/cli/opt*.c tools/cli/help.c publish/files.c publish/sha256.c publish/card.c \
    publish/hub/name.c publish/hub/tree.c publish/hub/choose.c \
    calib/stats_file.c calib/stats.c calib/sites.c kernels/core/pool.c kernels/attn.c kernels/device.c; do
    case $source in *_bsd.c) continue ;; esac # of other systems
    [ ! -f "$source" ] || objects="$objects build-fuzz/${source%.c}.o"
done
# shellcheck disable=SC2086 # a list of files
make -s -j"$(nproc)" CC=clang BUILD=build-fuzz SANITIZE="$flags" CFLAGS='-O1 -g -ffunction-sections' $objects || exit 1
rm -f build-fuzz/parsers.a
# shellcheck disable=SC2086
ar rcs build-fuzz/parsers.a $objects || exit 1 # a fuzzer takes what it needs of them, function by function
packages() { # pkg-config's --cflags or --libs
    pkg-config "$1" libcjson libxxhash openblas libpcre2-8 libutf8proc libmicrohttpd libcurl gnutls nettle
}
passed=0 failed=0
for source in tests/fuzz/fuzz_*.c; do
    name=${source#tests/fuzz/fuzz_}
    name=${name%.c}
    [ $# -eq 0 ] || case " $* " in *" $name "*) ;; *) continue ;; esac
    program=build-fuzz/fuzz_$name
    # shellcheck disable=SC2046 # lists of flags
    clang -std=c11 -Wall -Wextra -D_GNU_SOURCE -I. $(packages --cflags) -O1 -g \
        -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined -Wl,--gc-sections,-z,start-stop-gc -o "$program" \
        "$source" build-fuzz/parsers.a $(packages --libs) -llapacke -lm -pthread || {
        failed=$((failed + 1)) # what it needs of a module that is not in the list above; the others go on
        echo "-- $name: not built"
        continue
    }
    mkdir -p "build-fuzz/corpus/$name" "tests/fuzz/corpus/$name"
    if "$program" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="build-fuzz/$name-" "build-fuzz/corpus/$name" "tests/fuzz/corpus/$name" \
        >"build-fuzz/$name.log" 2>&1; then
        passed=$((passed + 1))
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "build-fuzz/$name.log")
        echo "ok $name: ${runs:-?} runs in $seconds s"
    else
        failed=$((failed + 1))
        tail -n 40 "build-fuzz/$name.log"
        echo "-- $name: found something, see build-fuzz/$name.log"
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
