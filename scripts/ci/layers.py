#!/usr/bin/env python3
"""The order of the tree, from includes and from the object files of the last build (`make layers`):

    rows      who may include whom, folder by folder: only what its row in ROWS names
    headers   no headers that include each other in a circle
    circles   no .c files that call each other in a circle: undefined symbols against defined ones
    exports   nothing outside its file that no other file, program or test uses
    comments  a file that a comment names is there

Prints each fault in one line; exit code 1 where there is one."""
import collections
import os
import re
import subprocess
import sys

BUILD = os.environ.get("BUILD", "build")
SOURCES = (".c", ".h", ".cu", ".cuh", ".cc")

# In reading order: a row may name only rows above it, so folders form no circle; BACK lists what does all
# the same. A row is a folder with what is below it, or one module (a .h and its .c). A row may always include
# itself. `tests/` may include everything.
ROWS = [
    # ---- base: errors, memory, files, JSON, processors; knows no format ----
    ("base", ""),
    # ---- formats: what bytes mean ----
    # one weight in any scheme: its planes, their reference reading, tiles
    ("formats/tensor", "base"),
    # architectures: roles, names, config.json
    ("formats/arch", "base"),
    # safetensors and the small files of a Hugging Face folder
    ("formats/hf", "base formats/tensor"),
    # GGUF: blocks, names and keys of its architectures
    ("formats/gguf", "base formats/tensor formats/arch formats/hf"),
    # our own file
    ("formats/llmq", "base formats/tensor formats/arch formats/hf"),
    # a model wherever it comes from: opens all of the above
    ("formats/source", "base formats/tensor formats/arch formats/hf formats/gguf formats/llmq"),
    # ---- kernels: arithmetic ----
    # threads, instruction sets, small functions, the table and its operands: what every kernel needs
    ("kernels/core", "base formats/tensor"),
    # contracts (mm.h, attn.h, ops.h, device.h), and which kernels are chosen
    ("kernels", "base formats/tensor kernels/core"),
    # plain C, complete
    ("kernels/ref", "base formats/tensor kernels/core"),
    # templates that the instruction sets below fill in
    ("kernels/simd", "base formats/tensor kernels/core kernels"),
    ("kernels/x86", "base formats/tensor kernels/core kernels kernels/simd"),
    ("kernels/arm", "base formats/tensor kernels/core kernels kernels/simd"),
    # a table of its own, complete; includes no other kernel
    ("kernels/cuda", "base formats/tensor kernels/core kernels"),
    # the machine's limits
    ("kernels/bench", "base formats/tensor kernels/core kernels"),
    # ---- runtime: a loaded model, and its server ----
    # every limit that a reader of requests or files keeps
    ("runtime/limits", "base"),
    ("runtime/tokenizer", "base formats runtime/limits"),
    # chat templates, and answers taken apart
    ("runtime/chat", "base formats runtime/limits runtime/tokenizer"),
    # grammars: which tokens may come next
    ("runtime/grammar", "base runtime/limits runtime/tokenizer"),
    # weights in memory, KV cache, what a device holds
    ("runtime/model", "base formats kernels"),
    # one step of many sequences
    ("runtime/forward", "base formats kernels runtime/model"),
    # a model on disk, ready to run: weights and tokenizer
    ("runtime/load", "base formats kernels runtime/limits runtime/tokenizer runtime/model runtime/forward"),
    # scheduler, sampler, speculation
    ("runtime/engine", "base formats kernels runtime/limits runtime/tokenizer runtime/grammar runtime/model "
     "runtime/forward runtime/load"),
    # HTTP; knows no model
    ("runtime/http", "base runtime/limits"),
    # routes: requests to the engine's, events to answers
    ("runtime/api", "base formats runtime/limits runtime/tokenizer runtime/chat "
     "runtime/grammar runtime/engine runtime/http"),
    # service (engine and templates behind the API), eval (perplexity)
    ("runtime", "base formats kernels runtime/limits runtime/tokenizer runtime/chat runtime/grammar runtime/model "
     "runtime/forward runtime/load runtime/engine runtime/http runtime/api"),
    # ---- calib: text through a model; statistics of each linear's inputs ----
    ("calib", "base formats kernels runtime"),
    # ---- quantize: tensor and statistics in, codes out ----
    # one method a file: arithmetic on one matrix
    ("quantize/methods", "base formats/tensor kernels calib"),
    # one layer of the model: what is read, rounded, kept
    ("quantize/layer", "base formats kernels calib quantize/methods"),
    # what changes the weights before they are rounded: scale folding, rotation
    ("quantize/transform", "base formats kernels calib quantize/methods quantize/layer"),
    # mixed precision: which layer gets how many bits
    ("quantize/mixed", "base formats kernels runtime calib quantize/methods quantize/layer"),
    # training of scales and norms against the original's answers
    ("quantize/tune", "base formats kernels calib quantize/methods quantize/layer"),
    # the whole run: plan, memory, resume, check
    ("quantize/job", "base formats kernels runtime calib quantize/methods quantize/layer quantize/transform "
     "quantize/mixed quantize/tune"),
    # ---- convert, publish: foreign files out; what leaves the machine and comes back ----
    ("convert", "base formats kernels quantize/methods"),
    ("publish", "base formats convert"),
    # ---- the library's header, and programs that use it ----
    ("include", ""),
    ("examples", "include"),
    # ---- tools: the command; tools/ itself is one file per subcommand ----
    # options, help, messages, loading, outputs
    ("tools/cli", "base formats kernels runtime quantize publish"),
    # HTTP client, isolation, budgets of `serve`
    ("tools/server", "base formats kernels runtime tools/cli"),
    ("tools/bench", "base formats kernels runtime calib tools/cli tools/server"),
    ("tools/report", "base formats kernels runtime calib quantize tools/cli"),
    ("tools/verify", "base formats kernels runtime quantize publish tools/cli"),
    # `quantize --to`
    ("tools/quantize_to", "base formats kernels quantize convert tools/cli"),
    # MODEL quantized while it is loaded
    ("tools/inflight", "base formats kernels runtime quantize tools/cli tools/report"),
    ("tools", "base formats kernels runtime calib quantize convert publish include tools/cli tools/server "
     "tools/bench tools/report tools/verify tools/inflight tools/quantize_to"),
    # includes everything; nothing includes it
    ("tests", ""),
]
# Against the order: what the row may include of rows below it, and why.
BACK = {
    # v16.h and two templates take their vectors from the machine that they are compiled for
    ("kernels/simd", "kernels/arm"),
    # fold.h: scales are folded while a layer is rounded; rotate.h needs a layer's plan
    ("quantize/layer", "quantize/transform"),
    # `serve --test-script` of the test program (LLMQ_SCRIPTED)
    ("tools", "tests"),
}
# Circles of .c files that are meant, without ".c".
CIRCLES = [
    # an expression's value may be a method's, a format's or a filter's, whose arguments are expressions
    {"runtime/chat/tmpl_ops", "runtime/chat/tmpl_methods", "runtime/chat/tmpl_format"},
    # `select` and `reject` take a test; tests take filters' values
    {"runtime/chat/tmpl_filters", "runtime/chat/tmpl_tests"},
]
# Exported and used at home alone, all the same.
EXPORTS = {"main"}


def files_of(tops, endings):
    for top in tops:
        for folder, _, names in os.walk(top):
            for name in sorted(names):
                if name.endswith(endings):
                    yield os.path.join(folder, name)


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def includes(text):
    return re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, re.M)


def circles(graph):
    """Sets of more than one node that reach each other (Tarjan)."""
    index, low, stack, on, out = {}, {}, [], set(), []

    def visit(v):
        index[v] = low[v] = len(index)
        stack.append(v)
        on.add(v)
        for w in sorted(graph.get(v, ())):
            if w not in index:
                visit(w)
                low[v] = min(low[v], low[w])
            elif w in on:
                low[v] = min(low[v], index[w])
        if low[v] == index[v]:
            members = set()
            while v not in members:
                members.add(stack.pop())
            on.difference_update(members)
            if len(members) > 1:
                out.append(members)

    sys.setrecursionlimit(10000)
    for v in sorted(graph):
        if v not in index:
            visit(v)
    return out


# ---- includes ----
NAMES = [name for name, _ in ROWS]


def expand(own, words):
    at = NAMES.index(own)
    out = {own}
    for word in words.split():
        out.update(n for n in NAMES[:at] if n == word or n.startswith(word + "/"))
    return out | {b for a, b in BACK if a == own}


def row_of(path):
    stem = os.path.splitext(path)[0]
    while stem and stem not in NAMES:
        stem = os.path.dirname(stem)
    return stem or None


def check_rows(bad):
    may = {name: expand(name, words) for name, words in ROWS}
    for name, words in ROWS:
        for word in words.split():
            if not any(n == word or n.startswith(word + "/") for n in NAMES[:NAMES.index(name)]):
                bad.append(f"layers.py: {name} names {word}, which is no row above it")
    tops = sorted({name.split("/")[0] for name in NAMES} - {"tests"})
    n, headers = 0, {}
    for path in files_of(tops, SOURCES):
        own, text = row_of(path), read(path)
        n += 1
        for to in includes(text):
            if row_of(to) not in may[own]:
                bad.append(f"{path}: {own} may not include {to}")
        if path.endswith((".h", ".cuh")):
            headers[path] = set(includes(text))
    for members in circles(headers):
        bad.append(f"headers in a circle: {' '.join(sorted(members))}")
    return n


# ---- comments ----
def check_comments(bad):
    tops = ("base", "formats", "kernels", "runtime", "calib", "quantize", "convert", "publish", "tools", "include",
            "examples", "tests")
    named = re.compile(r"(?<![\w/.-])((?:%s|scripts)/[\w/.-]*\w\.(?:c|h|cu|cuh|cc|py|sh))\b" % "|".join(tops))
    for path in files_of(tops, SOURCES):
        text = read(path)
        for to in named.findall(text):
            if not os.path.exists(to) and "NAME" not in to and "greet" not in to:
                bad.append(f"{path}: names {to}, which is not there")
        first = re.match(r"/\*.*?\*/", text, re.S)
        for to in re.findall(r"\bsee ([\w/]+\.h)\b", first.group() if first else ""):
            if not os.path.exists(to) and not os.path.exists(os.path.join(os.path.dirname(path), to)):
                bad.append(f"{path}: says to see {to}, which is not there")


# ---- objects ----
def source_of(obj):
    stem = os.path.relpath(obj, BUILD)[:-2]
    for s in (stem, stem.removeprefix("emu/")):
        for ending in (".c", ".cu", ".cc"):
            if os.path.exists(s + ending):
                return s + ending
    return None


def symbols():
    """Who defines a symbol and who uses it: sets of sources."""
    objects = {o: source_of(o) for o in files_of([BUILD], (".o",))}
    objects = {o: s for o, s in objects.items() if s}
    defined, used = collections.defaultdict(set), collections.defaultdict(set)
    if not objects:
        return defined, used
    out = subprocess.run(["nm", "-A", "-P", *objects], capture_output=True, text=True, check=True).stdout
    for line in out.splitlines():
        obj, rest = line.split(": ", 1)
        name, kind = rest.split()[:2]
        if kind == "U":
            used[name].add(objects[obj])
        elif kind in "TDBRC":
            defined[name].add(objects[obj])
    return defined, used


def check_circles(bad, defined, used):
    graph = collections.defaultdict(set)
    why = collections.defaultdict(list)
    for name, sources in used.items():
        for a in sources:
            for b in defined.get(name, ()):
                if a == b or not a.endswith(".c") or not b.endswith(".c") or "tests/" in a + b:
                    continue
                graph[a[:-2]].add(b[:-2])
                why[a[:-2], b[:-2]].append(name)
    found = list(circles(graph))
    for allowed in CIRCLES:
        if allowed not in found:
            bad.append(f"{sorted(allowed)}: listed as a circle, and is none: take it off the list")
    for members in found:
        if any(members <= allowed for allowed in CIRCLES):
            continue
        bad.append(f"files in a circle: {' '.join(sorted(members))}")
        for a in sorted(members):
            for b in sorted(members & graph[a]):
                bad.append(f"    {a} calls {b}: {' '.join(sorted(why[a, b]))}")


def check_exports(bad, defined, used):
    tests = {s for sources in used.values() for s in sources if s.startswith("tests/unit/")}
    if not tests or not tests >= set(os.environ.get("TESTS", "").split()):  # what is for one that is not built looks unused
        print("layers: exports are not looked at: make tests first")
        return
    for name, sources in sorted(defined.items()):
        own = {s for s in sources if not s.startswith("tests/") and s.endswith(".c")}
        if own and not used[name] - own and name not in EXPORTS and not min(own).startswith("tools/library/"):
            bad.append(f"{min(own)}: {name} is exported, and no other file uses it")


def main():
    bad = []
    n = check_rows(bad)
    check_comments(bad)
    defined, used = symbols()
    if not defined:
        subprocess.run(["make", "-s", "all", f"BUILD={BUILD}"], check=True, stdout=subprocess.DEVNULL)
        defined, used = symbols()
    check_circles(bad, defined, used)
    check_exports(bad, defined, used)
    for line in bad:
        print(line, file=sys.stderr)
    print(f"layers: {n} files, {len(bad)} faults")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
