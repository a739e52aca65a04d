#!/bin/sh
# The main job of llmq from a fresh clone, on the embedded checkpoint (CPU, no account, no download
# but the compiler and libraries): install, build, quantize, convert, measure, serve, ask, stop.
# Safe to run again: everything it makes is in build/demo, which it empties first. The first run takes
# a minute or two for packages and about five for the build on two cores; a later run takes half a minute.
# Where a release for this machine is in dist/ and nothing was built yet, its program is taken: no install, no build.
#
# usage: sh scripts/demo.sh [--no-install]
set -eu
cd "$(dirname "$0")/.."
install=yes
for arg in "$@"; do
    case $arg in
    --no-install) install= ;;
    -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "demo.sh: unknown option '$arg' (see --help)" >&2; exit 2 ;;
    esac
done

model=models/novels-6m
text=tests/golden/text/novels-heldout-100w.txt
dir=build/demo
packed=$dir/novels-6m-awq.llmq
server=

stop_server() {
    [ -n "$server" ] || return 0
    kill -TERM "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
    server=
}
. scripts/progress.sh
trap 'work_stop; stop_server' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

step() { printf '\n== %s\n' "$*"; }
show() { # print a command and run it; printed to stderr, since stdout may go to a file
    printf '$ %s\n' "$*" >&2
    "$@"
}
field() { # KEY FILE: a top-level number or string of a JSON document that llmq printed
    sed -n "s/^	\"$1\":[[:space:]]*\"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}\$/\1/p" "$2" | head -n 1
}
round() { printf "%.${2}f" "$1"; } # NUMBER PLACES
now_ms() { echo $(($(date +%s%N) / 1000000)); }

mkdir -p "$dir"
rm -rf "${dir:?}"/*
jobs=$(nproc 2>/dev/null || echo 2)

# Lines such as "  CC   base/base.c", by what they cost: a file of vector kernels takes as long as 40
# others, a CUDA file as long as 60. LAST: leave out so many lines at the end, which still run.
cost() { # LAST
    sed -n 's/^\(echo "\)\{0,1\}  \([A-Z][A-Z]* .*\)/\2/p' | head -n "-$1" |
        awk '{ n += /^NVCC/ ? 60 : /kernels\/x86|kernels\/arm/ ? 40 : 1 } END { print n + 0 }'
}
building() { # how far, what is compiled now, and the time left at the pace so far
    done=$(cost "$jobs" <"$dir/build.log")
    left=
    if [ "$seconds" -ge 10 ] && [ "$done" -ge $((all / 20)) ] && [ "$done" -gt 0 ]; then
        left=", about $(clock $((seconds * (all - done) / done))) left"
    fi
    # shellcheck disable=SC2154 # seconds: of work
    echo "building: $((100 * done / all)) %, $(clock "$seconds")$left  $(tail -n 1 "$dir/build.log" | cut -c 8-60)"
}

released() { # unpacks what `make dist` made, if it runs here
    archive=$(find dist -name "llmq-*-linux-$(uname -m).tar.gz" 2>/dev/null | head -n 1)
    [ -n "$archive" ] && command -v curl >/dev/null || return
    tar -xzf "$archive" -C "$dir" && llmq=$(echo "$dir"/llmq-*/llmq) && "$llmq" version >/dev/null 2>&1
}
build() {
    [ -z "$install" ] || sh scripts/install-deps.sh
    all=$(make -n 2>/dev/null | cost 0)
    if [ "$all" -eq 0 ]; then
        echo "the program is built already"
    else
        echo "\$ make -j$jobs    # one to five minutes on two cores; its output: $dir/build.log"
    fi
    start=$(date +%s)
    work "$dir/build.log" building make -s -j"$jobs" || {
        tail -n 20 "$dir/build.log" >&2
        echo "demo.sh: the build failed; its last lines are above, all of it is in $dir/build.log" >&2
        exit 1
    }
    [ "$all" -eq 0 ] || echo "built ./llmq in $(clock $(($(date +%s) - start)))"
}

step "1/6 install what is missing, and build"
if [ ! -e llmq ] && released; then
    echo "not needed: the program of $archive runs here"
else
    llmq=./llmq
    build
fi

step "2/6 quantize the checkpoint to 4 bits (AWQ; 10 to 40 s)"
show "$llmq" quantize $model -o $packed --method awq --json >"$dir/quantize.json"
bytes_in=$(field bytes_in "$dir/quantize.json")
bytes_out=$(field bytes_out "$dir/quantize.json")
echo "linear layers: $(round "$(field bpw "$dir/quantize.json")" 2) bits per weight;" \
    "file: $bytes_in -> $bytes_out bytes; $(round "$(field seconds "$dir/quantize.json")" 1) s"

step "3/6 convert: checkpoint -> packed -> checkpoint"
show "$llmq" convert $model -o $dir/plain.llmq --to llmq
show "$llmq" convert $dir/plain.llmq -o $dir/back --to safetensors
if cmp -s $model/model.safetensors $dir/back/model.safetensors; then
    echo "the checkpoint came back byte for byte"
fi
show "$llmq" verify $packed

step "4/6 perplexity before and after (lower is better; 100 windows of unseen novels)"
show "$llmq" eval $model --text $text --ctx 512 --json >"$dir/before.json"
show "$llmq" eval $packed --text $text --ctx 512 --ref $model --json >"$dir/after.json"
echo "unquantized: $(round "$(field perplexity "$dir/before.json")" 3)"
echo "quantized:   $(round "$(field perplexity "$dir/after.json")" 3)," \
    "KL divergence from the unquantized model $(round "$(field kl_mean "$dir/after.json")" 4)"

step "5/6 serve it and ask"
echo "\$ $llmq serve $packed --served-model-name demo --port 0 &    # 0: any free port"
: >"$dir/serve.log"
"$llmq" serve $packed --served-model-name demo --port 0 >"$dir/serve.log" 2>&1 &
server=$!
tries=0 url=
until [ -n "$url" ] && curl -sf "$url/ready" >/dev/null 2>&1; do
    tries=$((tries + 1))
    if ! kill -0 "$server" 2>/dev/null || [ "$tries" -gt 300 ]; then
        tail -n 5 "$dir/serve.log" >&2
        exit 1
    fi
    url=$(sed -n 's/.*listening on \(http:[^ ,]*\).*/\1/p' "$dir/serve.log" | head -n 1)
    sleep 0.1
done
prompt='The old house stood at the end of the lane, and'
body="{\"model\":\"demo\",\"prompt\":\"$prompt\",\"max_tokens\":120,\"temperature\":0.7,\
\"seed\":7,\"stream\":true,\"stream_options\":{\"include_usage\":true}}"
echo "\$ curl -N $url/v1/completions -H 'Content-Type: application/json' -d '{\"prompt\":\"$prompt\",\"stream\":true,...}'"
printf '\n    %s' "$prompt"
start=$(now_ms)
curl -sSN "$url/v1/completions" -H 'Content-Type: application/json' -d "$body" |
    tee "$dir/stream.txt" |
    sed -un 's/^data: .*"text": *"\(\([^"\\]\|\\.\)*\)".*$/\1/p' |
    while IFS= read -r piece; do
        # %b knows JSON's \n, \t and \\, but not its \"
        printf '%b' "$(printf '%s' "$piece" | sed 's/\\"/"/g; s/\\u[0-9a-fA-F]\{4\}/?/g')"
    done
end=$(now_ms)
tokens=$(sed -n 's/.*"completion_tokens": *\([0-9]*\).*/\1/p' "$dir/stream.txt" | tail -n 1)
grep -q '^data: \[DONE\]' "$dir/stream.txt" || {
    echo "demo.sh: the stream did not end: $(tail -n 1 "$dir/stream.txt")" >&2
    exit 1
}
printf '\n\n%s tokens in %s ms: %s tokens per second\n' "$tokens" "$((end - start))" \
    "$((tokens * 1000 / (end - start + 1)))"

step "6/6 stop the server"
kill -TERM "$server"
status=0
wait "$server" || status=$?
server=
echo "the server ended with exit code $status"
[ "$status" -eq 0 ] || { tail -n 5 "$dir/serve.log" >&2; exit 1; }

cat <<END

Done. What to do next:
  quantize your own model     $llmq quantize path/to/hugging-face-folder -o model.llmq --method gptq
  serve this one              $llmq serve $packed
                              (any OpenAI client at http://127.0.0.1:8000/v1; a page to chat at http://127.0.0.1:8000)
  every option, with examples $llmq help quantize
  every test                  sh scripts/test.sh
  read on                     README.md, docs/methods/README.md (which method)
END
