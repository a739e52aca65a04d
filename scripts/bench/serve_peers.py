#!/usr/bin/env python3
"""What a server remembers, swaps and adapts: llmq serve beside llama-server, the same file, threads and requests, in turns.

usage: LLAMA_BIN=FOLDER scripts/bench/serve_peers.py FILE.gguf

  restart   a prompt of TOKENS (4000) tokens computed, and the same with a few more after a restart: llmq has --kv-cache-dir, for
            llama-server the slot is saved before and restored after, as its clients must ask for: that is counted
  swap      FILE under two names in one folder of which one may be loaded: from a request for the other to its one token;
            SWAP=OTHER.llmq is what llmq has instead (of `convert --layout tile16`: as it lies in memory)
  adapters  8 clients at once, 64 tokens each: none, one adapter for all, and ADAPTERS=A.gguf,B.gguf,... in turns
Also from the environment: THREADS (all), REPEATS (3), PARTS (restart swap adapters), LLMQ (another llmq). Prints the median and the range of all turns; seconds,
or tokens/s."""
import concurrent.futures
import contextlib
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time
import urllib.request

from peers import HERE, fail, free_port, number, program, server, setting

CLIENTS, ANSWER = 8, 64
WORDS = "the of and a to in he was that it his her with as had for she not at but be on him they you all".split()


def post(url, path, **body):
    r = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(r, timeout=3600) as answer:
        return json.load(answer)


def text(n, seed=0):
    x, words = 12345 + seed, []
    for _ in range(n):
        x = (x * 1103515245 + 12345) % 2**31
        words.append(WORDS[x >> 16 & 15])
    return " ".join(words)


def complete(url, prompt, n=1, **more):
    """Seconds until the answer."""
    start = time.perf_counter()
    post(url, "/v1/completions", prompt=prompt, max_tokens=n, temperature=0, ignore_eos=True, **more)
    return time.perf_counter() - start


class Peer:
    def __init__(self, path, threads):
        self.path, self.threads = path, str(threads)

    def serve(self, *args):
        port = free_port()
        return server([self.path, *self.args, *args, "--threads", self.threads, "--host", "127.0.0.1", "--port", str(port)], port)


class Llmq(Peer):
    name, args = "llmq", ["serve", "--log-level", "error"]

    @contextlib.contextmanager
    def remembers(self, gguf, folder, context):
        with self.serve(gguf, "--kv-cache-dir", folder, "--kv-cache-disk", "4G", "--max-model-len", str(context), "--max-num-seqs", "1") as url:
            yield url

    def recall(self, url):
        pass

    def swaps(self, folder):
        return self.serve(folder, "--max-loaded", "1")

    def adapts(self, gguf, adapters):
        more = [x for i, a in enumerate(adapters) for x in ("--lora", f"a{i}={a}")]
        return self.serve(gguf, *more, "--max-model-len", "512", "--max-num-seqs", str(CLIENTS))

    def adapted(self, i):
        return {} if i is None else {"model": f"a{i}"}


class LlamaServer(Peer):
    name, args = "llama-server", ["--jinja"]

    @contextlib.contextmanager
    def remembers(self, gguf, folder, context):
        with self.serve("-m", gguf, "--slot-save-path", folder, "-c", str(context), "-np", "1") as url:
            yield url
            post(url, "/slots/0?action=save", filename="slot.bin")

    def recall(self, url):
        post(url, "/slots/0?action=restore", filename="slot.bin")

    def swaps(self, folder):
        return self.serve("--models-dir", folder, "--models-max", "1", "-c", "512")

    def adapts(self, gguf, adapters):
        more = ["--lora", ",".join(adapters), "--lora-init-without-apply"] if adapters else []
        return self.serve("-m", gguf, *more, "-np", str(CLIENTS), "-c", str(512 * CLIENTS))

    def adapted(self, i):
        return {} if i is None else {"lora": [{"id": i, "scale": 1.0}]}


def restart(peer, gguf, tokens):
    with tempfile.TemporaryDirectory() as folder:
        prompt, context = text(tokens), 2 * tokens + 64
        with peer.remembers(gguf, folder, context) as url:
            yield "restart: computed", complete(url, prompt)
        with peer.remembers(gguf, folder, context) as url:
            start = time.perf_counter()
            peer.recall(url)
            complete(url, prompt + " " + text(8, 1))
            yield "restart: second turn", time.perf_counter() - start


def swap(peer, files):
    with tempfile.TemporaryDirectory() as folder:
        for name, path in zip("ab", files):
            os.symlink(os.path.abspath(path), f"{folder}/{name}{pathlib.Path(path).suffix}")
        with peer.swaps(folder) as url:
            with urllib.request.urlopen(url + "/v1/models", timeout=60) as answer:
                names = [m["id"] for m in json.load(answer)["data"] if m["id"].split(".")[0] in ("a", "b")]
            for name in names:
                complete(url, "Once", model=name)
            yield "swap", statistics.median(complete(url, "Once", model=name) for name in names * 4)


def adapters(peer, gguf, paths):
    with peer.adapts(gguf, paths) as url:
        complete(url, "Once", ANSWER)
        kinds = [("none", lambda i: None), ("one", lambda i: 0), (f"{len(paths)} in turns", lambda i: i % len(paths))]
        for name, which in kinds[:len(paths) + 1]:
            with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
                start = time.perf_counter()
                jobs = [pool.submit(complete, url, text(16, i), ANSWER, **peer.adapted(which(i)))
                        for i in range(CLIENTS)]
                for j in jobs:
                    j.result()
                yield f"adapters: {name}, tokens/s", CLIENTS * ANSWER / (time.perf_counter() - start)


def main():
    if len(sys.argv) != 2 or not os.path.isfile(sys.argv[1]) or not os.environ.get("LLAMA_BIN"):
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    gguf, threads, paths = sys.argv[1], number("THREADS", os.cpu_count()), [a for a in setting("ADAPTERS", "").split(",") if a]
    for path in paths:
        if not os.path.isfile(path):
            fail(f"ADAPTERS: {path}: expected a .gguf, found none")
    ours = setting("SWAP", gguf)
    peers = [(Llmq(program(setting("LLMQ", HERE.parent.parent / "llmq")), threads), [ours, ours]),
             (LlamaServer(program(f"{os.environ['LLAMA_BIN']}/llama-server"), threads), [gguf, gguf])]
    got = {}
    for _ in range(number("REPEATS", 3)):
        for peer, files in peers:
            parts = {"restart": restart(peer, gguf, number("TOKENS", 4000)), "swap": swap(peer, files), "adapters": adapters(peer, gguf, paths)}
            for part in setting("PARTS", " ".join(parts)).split():
                for row, value in parts[part]:
                    got.setdefault(row, {}).setdefault(peer.name, []).append(value)
    print(f"{'':32}" + "".join(f"{p.name + ' (range)':>32}" for p, _ in peers) + f"{'ratio':>8}")
    for row, by in got.items():
        medians = [statistics.median(by[p.name]) for p, _ in peers]
        cells = [f"{m:.3f} ({min(by[p.name]):.3f} to {max(by[p.name]):.3f})" for m, (p, _) in zip(medians, peers)]
        print(f"{row:32}" + "".join(f"{c:>32}" for c in cells) + f"{medians[0] / medians[1]:8.3f}")


if __name__ == "__main__":
    main()
