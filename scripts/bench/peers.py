#!/usr/bin/env python3
"""llmq beside other engines on this machine: the same shape, the same threads, in turns.

usage: [LLAMA_BIN=FOLDER LLAMA_MODEL=F.gguf] [OPENVINO_MODEL=FOLDER] scripts/bench/peers.sh [MODEL.llmq]
       LLAMA_BIN=FOLDER scripts/bench/peers.sh FILE.gguf...       the same file for both, a table for each

Measured are the peers that are given:
  LLAMA_BIN       the folder of llama-bench (and, for more than one sequence, llama-batched-bench),
                  of whatever version: its build is printed; LLAMA_MODEL is what it runs
  OPENVINO_MODEL  a folder that optimum-intel exported; OPENVINO_PYTHON (default python3) is a
                  Python that has openvino_genai
llmq runs MODEL.llmq, or its built-in 1.1 B Llama shape of SCHEME (u4-g128) where none is given: then
the peers' models must have that shape for the ratios to mean anything.
Also from the environment: THREADS (all), REPEATS (4), PROMPT (512), CONTEXT (128: what each sequence
holds before it decodes), STEPS (32), BATCH (1; "1,2,4,8,16,32" takes minutes), LLMQ (another llmq), KERNELS
(llmq's; the peer chooses its own).
SERVE=32 measures servers instead of that: SERVE clients at a time, two requests each, INPUT (128) tokens of
prompt, OUTPUT (128) of answer, by `llmq bench serve` against `llmq serve MODEL.llmq` and against llama-server;
both models need a tokenizer then. OpenVINO's row is its continuous batching called in its own process.
Prints tokens/s of all sequences together, the best and the median of all turns, and llmq's ratio.
"""
import contextlib
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent


def fail(text):
    print("peers.sh: " + text, file=sys.stderr)
    sys.exit(2)


def setting(name, default):
    return os.environ.get(name) or str(default)


def whole(name, text, least=1):
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        fail(f"{name}: expected an integer from {least} on, found '{text}'")
    return number


def number(name, default, least=1):
    return whole(name, setting(name, default), least)


def given(name, of, there):
    """A path from the environment."""
    path = os.environ.get(name) or fail(f"{name}: expected {of}, found none")
    if not there(path):
        fail(f"{name}: expected {of}, found '{path}'")
    return path


def program(path):
    if not os.access(path, os.X_OK) or not os.path.isfile(path):
        fail(f"{path}: expected a program, found none")
    return str(path)


def output(args):
    try:
        p = subprocess.run(args, capture_output=True, text=True)
    except OSError as e:
        fail(f"{args[0]}: {e.strerror}")
    if p.returncode:
        fail(f"{args[0]}: exit {p.returncode}: {p.stderr.strip()[-300:]}")
    return p.stdout


def answers(url):
    try:
        urllib.request.urlopen(url, timeout=10).close()
        return 200
    except urllib.error.HTTPError as e:
        return e.code
    except OSError:
        return 0


@contextlib.contextmanager
def server(args, port):
    """A server that is ready (or, where it knows no /ready, healthy), at http://127.0.0.1:port."""
    p = subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(1200):
            if p.poll() is not None:
                fail(f"{args[0]}: exit {p.returncode} before it served")
            ready = answers(url + "/ready")
            if ready == 200 or ready == 404 and answers(url + "/health") == 200:
                break
            time.sleep(0.1)
        else:
            fail(f"{args[0]}: did not serve within two minutes")
        yield url
    finally:
        p.terminate()
        p.wait()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def served(llmq, w, args):
    """Rows as of `run`, of a server: tokens/s of its answers."""
    port = free_port()
    with server([*map(str, args), "--host", "127.0.0.1", "--port", str(port)], port) as url:
        doc = json.loads(output([llmq, "bench", "serve", url, "--num-prompts", str(2 * w.clients), "--concurrency",
                                 str(w.clients), "--input-len", str(w.input), "--output-len", str(w.output),
                                 "--log-level", "error", "--json"]))
    return {("serve", w.clients): doc["output_throughput"]}


class Work:
    """What every engine is asked for."""

    def __init__(self):
        self.threads, self.turns = number("THREADS", os.cpu_count()), number("REPEATS", 4)
        self.prompt, self.context, self.steps = number("PROMPT", 512), number("CONTEXT", 128), number("STEPS", 32)
        self.batch = [whole("BATCH", x) for x in setting("BATCH", 1).split(",")]
        self.clients = number("SERVE", 0, least=0)
        self.input, self.output = number("INPUT", 128), number("OUTPUT", 128)


class Llmq:
    """Rows ("prefill" or "decode", sequences) -> tokens/s, as of every engine here."""

    def __init__(self, model):
        self.model = model
        self.path = program(setting("LLMQ", HERE.parent.parent / "llmq"))

    def run(self, w):
        doc = json.loads(output([
            self.path, "bench", "model", *self.model, "--threads", str(w.threads), "--prompt", str(w.prompt),
            "--batch", ",".join(map(str, w.batch)), "--context", str(w.context), "--steps", str(w.steps),
            *([] if self.model else ["--scheme", setting("SCHEME", "u4-g128")]),
            *(["--kernels", os.environ["KERNELS"]] if os.environ.get("KERNELS") else []), "--log-level", "error",
            "--json"]))
        self.about = f"llmq {doc['scheme']}, kernels {doc['kernels']}, activations {doc['activations']}"
        return {(r["name"], r["batch"]): r[r["name"] + "_tok_s"] for r in doc["rows"]}

    def serve(self, w):
        if not self.model:
            fail("SERVE: expected a MODEL.llmq that has a tokenizer")
        self.about = f"llmq serve {self.model[0]}"
        return served(self.path, w, [self.path, "serve", *self.model, "--threads", w.threads, "--max-num-seqs",
                                     w.clients, "--max-model-len", max(512, w.input + w.output + 16), "--log-level",
                                     "error"])


class LlamaCpp:
    def __init__(self, gguf=None):
        folder = pathlib.Path(os.environ["LLAMA_BIN"])
        self.path, self.batched = program(folder / "llama-bench"), folder / "llama-batched-bench"
        self.model = gguf or given("LLAMA_MODEL", "a .gguf for LLAMA_BIN to run", os.path.isfile)

    def run(self, w):
        got = {}
        for row in json.loads(output([self.path, "-m", self.model, "-t", str(w.threads), "-p", str(w.prompt),
                                      "-n", str(w.steps), "-r", "1", "-o", "json"])):
            got["decode" if row["n_gen"] else "prefill", 1] = row["avg_ts"]
            self.about = f"llama.cpp {row.get('build_commit', '?')}, {row.get('model_type', '?')}"
        more = [b for b in w.batch if b > 1]
        if more and os.path.isfile(self.batched):
            cells = w.context + max(more) * (w.steps + w.context)
            for line in output([program(self.batched), "-m", self.model, "-t", str(w.threads), "-c", str(cells),
                                "-b", "2048", "-ub", "512", "-npp", str(w.context), "-ntg", str(w.steps), "-pps",
                                "-npl", ",".join(map(str, more)), "--output-format", "jsonl"]).splitlines():
                if line.startswith("{"):
                    row = json.loads(line)
                    got["decode", row["pl"]] = row["speed_tg"]
        return got

    def serve(self, w):
        path = program(pathlib.Path(os.environ["LLAMA_BIN"]) / "llama-server")
        self.about = f"llama-server {self.model}"
        return served(setting("LLMQ", HERE.parent.parent / "llmq"), w,
                      [path, "-m", self.model, "-t", w.threads, "-np", w.clients, "-c",
                       w.clients * (w.input + w.output + 16)])


class OpenVino:
    def __init__(self):
        self.model = given("OPENVINO_MODEL", "a folder of an exported model", os.path.isdir)
        self.python = setting("OPENVINO_PYTHON", "python3")

    def rows(self, w, *what):
        doc = json.loads(output([self.python, str(HERE / "peer_openvino.py"), self.model, str(w.threads),
                                 *map(str, what)]).splitlines()[-1])
        self.about = f"OpenVINO GenAI {doc['version']}, {self.model}"
        return {(name, batch): speed for name, batch, speed in doc["rows"]}

    def run(self, w):
        return self.rows(w, "run", w.prompt, w.context, w.steps, ",".join(map(str, w.batch)))

    def serve(self, w):
        """The same requests through its own continuous batching, in its process: there is no HTTP in its row."""
        return self.rows(w, "serve", w.clients, w.input, w.output)


PEERS = {"LLAMA_BIN": ("llama.cpp", LlamaCpp), "OPENVINO_MODEL": ("OpenVINO", OpenVino)}


def compare(w, engines):
    """Every engine in turns, and the table."""
    speeds = {name: {} for name, _ in engines}
    for _ in range(w.turns):
        for name, engine in engines:
            for row, speed in (engine.serve(w) if w.clients else engine.run(w)).items():
                speeds[name].setdefault(row, []).append(speed)
    peers = [name for name, _ in engines[1:]]
    print("; ".join(e.about for _, e in engines) + f"; {w.threads} threads, {w.turns} turns each")
    print(f"{'tokens/s':20}{'llmq':>10}" + "".join(f"{name:>12}{'ratio':>8}" for name in peers))
    for row, ours in speeds["llmq"].items():
        for how, pick in (("best", max), ("median", statistics.median)):
            a, line = pick(ours), f"{row[0]:8}{row[1]:4} {how:7}"
            line += f" {a:9.2f}"
            for name in peers:
                b = speeds[name].get(row)
                line += f" {pick(b):11.2f} {a / pick(b):7.2f}" if b else f"{'-':>12}{'-':>8}"
            print(line, flush=True)


def main():
    args = sys.argv[1:]
    ggufs = [a for a in args if a.endswith(".gguf")]
    if len(args) > 1 and len(ggufs) < len(args) or "-h" in args or "--help" in args:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    w = Work()
    if ggufs:
        if not os.environ.get("LLAMA_BIN"):
            fail("LLAMA_BIN: expected the folder of llama-bench, found none")
        for path in ggufs:
            if not os.path.isfile(path):
                fail(f"{path}: expected a .gguf, found none")
            print(f"\n{os.path.basename(path)}")
            compare(w, [("llmq", Llmq([path])), ("llama.cpp", LlamaCpp(path))])
        return
    found = [(name, make()) for env, (name, make) in PEERS.items() if os.environ.get(env)]
    if not found:
        fail("expected one of " + ", ".join(PEERS) + " in the environment, found none")
    compare(w, [("llmq", Llmq(args)), *found])


if __name__ == "__main__":
    main()
