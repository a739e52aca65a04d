"""deploy/ray on a cluster of three nodes, each a raylet of this machine: conversations go on while a node is killed and
one is added. LLMQ_RAY_REQUESTS (default 240): how many requests; 2000 take some minutes.

    python3 -m venv v && v/bin/pip install pytest "ray[serve]" && v/bin/python -m pytest tests/interop/test_ray.py
"""
import collections
import contextlib
import concurrent.futures
import http.client
import json
import os
import pathlib
import re
import signal
import threading

import pytest

from harness import LIMIT, ROOT, Server, until

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ray = pytest.importorskip("ray", reason="ray is not installed")
serve = pytest.importorskip("ray.serve", reason="ray[serve] is not installed")

FOLDER = str(ROOT / "deploy/ray")
REQUESTS = int(os.environ.get("LLMQ_RAY_REQUESTS", 240))
TURNS, CLIENTS = 8, 8
PORT = 18230
TEXT = (ROOT / "tests/golden/text/novels-heldout-100w.txt").read_text().split()


class Told(Exception):
    """A stream that ended with an error event."""


class Client:
    """Sends a request again once where OpenAI's clients would, and counts."""

    def __init__(self, port):
        self.port, self.count, self.lock = port, collections.Counter(), threading.Lock()

    def add(self, what, n=1):
        with self.lock:
            self.count[what] += n

    def once(self, body):
        """(text, prompt tokens, of these cached)"""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        try:
            c.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
            r = c.getresponse()
            data = r.read().decode()
        finally:
            c.close()
        if r.status >= 500:
            raise Told(f"{r.status}: {data[:300]}")
        assert r.status == 200, data
        if not body["stream"]:
            doc = json.loads(data)
            return doc["choices"][0]["message"]["content"], doc["usage"]
        events = [json.loads(x[6:]) for x in data.split("\n\n") if x.startswith("data: {")]
        assert data.endswith("data: [DONE]\n\n"), f"cut: {data[-300:]!r}"
        if "error" in events[-1]:
            raise Told(events[-1]["error"]["message"])
        return "".join(x["delta"].get("content") or "" for e in events for x in e["choices"]), events[-1]["usage"]

    def ask(self, body):
        try:
            text, usage = self.once(body)
        except (Told, OSError, http.client.HTTPException) as e:
            self.add("again")
            self.add(f"again: {type(e).__name__} {e}"[:200])
            text, usage = self.once(body)
        self.add("answered")
        self.add("prompt", usage["prompt_tokens"])
        self.add("cached", usage["prompt_tokens_details"]["cached_tokens"])
        return text

    def converse(self, number):
        """A conversation of TURNS turns that begins as no other does."""
        at = 41 * number % (len(TEXT) - 400)
        messages = [{"role": "system", "content": "You finish stories."}]
        for turn in range(TURNS):
            messages.append({"role": "user", "content": " ".join([str(number), *TEXT[at + 25 * turn:at + 25 * (turn + 1)]])})
            text = self.ask({"messages": messages, "max_tokens": 8, "temperature": 0, "stream": (number + turn) % 3 == 0,
                             **({"stream_options": {"include_usage": True}} if (number + turn) % 3 == 0 else {})})
            messages.append({"role": "assistant", "content": text})

    def all(self, at=()):
        """Every conversation; at: {how many requests are answered: what happens then}."""
        n = REQUESTS // TURNS
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            jobs = [pool.submit(self.converse, i) for i in range(n)]
            for answered, what in dict(at).items():
                until(lambda: self.count["answered"] >= answered or all(j.done() for j in jobs))
                what()
            for j in jobs:
                j.result()
        assert self.count["answered"] == n * TURNS
        return self.count["cached"] / self.count["prompt"]


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster
    node = {"num_cpus": 2, "object_store_memory": 80 << 20, "resources": {"server": 1}}
    with pytest.MonkeyPatch.context() as env:
        env.setenv("PYTHONPATH", FOLDER)  # of all that Ray starts
        env.syspath_prepend(FOLDER)
        c = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False}, connect=True)
        c.workers = [c.add_node(**node) for _ in range(2)]
        c.node = node
        serve.start(http_options={"port": PORT}, proxy_location="HeadOnly")
        yield c
        serve.shutdown()
        ray.shutdown()
        c.shutdown()


@pytest.fixture
def app(llmq, draft, cluster):
    """app(field=value, ...): the application with these Args, running."""
    import llmq_serve

    def run(**args):
        serve.run(llmq_serve.app(llmq_serve.Args(model=str(draft), llmq=llmq.path, **args)))
        until(lambda: len(servers()) == args.get("min_replicas", 1), lambda: f"servers: {servers()}")

    yield run
    serve.delete("default")
    until(lambda: not servers(), lambda: f"left: {servers()}")


def servers():
    """Process ids of the llmq servers of replicas."""
    found = []
    for p in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if b"\0serve\0" in (words := p.read_bytes()) and b"--shutdown-timeout" in words:
                found.append(int(p.parent.name))
    return found


def send(method, path, body=None, **headers):
    c = http.client.HTTPConnection("127.0.0.1", PORT, timeout=LIMIT)
    c.request(method, path, body and json.dumps(body), {"Content-Type": "application/json", **headers})
    return c, c.getresponse()


def story(tokens, stream=True):
    return {"prompt": "The old house", "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": stream}


def test_conversations_go_on_while_a_node_is_killed_and_one_added(llmq, draft, cluster, app, tmp_path):
    with Server(llmq, draft, log=tmp_path / "log") as alone:
        best = Client(alone.port).all()
    app(min_replicas=3, max_replicas=3, resources={"server": 1}, gateways=2)
    client = Client(PORT)
    n = REQUESTS // TURNS * TURNS
    hits = client.all({n // 3: lambda: cluster.remove_node(cluster.workers.pop(), allow_graceful=False),
                       2 * n // 3: lambda: cluster.workers.append(cluster.add_node(**cluster.node))})
    print(f"\n{n} requests, {client.count['again']} sent again; prefix cache {hits:.3f}, one server {best:.3f}, "
          f"ratio {hits / best:.3f}", *[f"\n{v} {k}" for k, v in client.count.items() if k.startswith("again: ")])
    assert hits >= 0.8 * best
    until(lambda: len(servers()) == 3, lambda: f"servers: {servers()}")


def test_answers_are_the_servers_own(llmq, draft, app, tmp_path):
    app(min_replicas=2, max_replicas=2, options="--api-key k --served-model-name m")
    key = {"Authorization": "Bearer k"}
    with Server(llmq, draft, "--api-key", "k", "--served-model-name", "m", log=tmp_path / "log") as alone:
        for method, path, body, sent in [
                ("GET", "/v1/models", None, key), ("GET", "/v1/models", None, {}), ("GET", "/nothing?x=%2F", None, key),
                ("POST", "/v1/chat/completions", {"messages": 1}, key), ("POST", "/v1/completions", story(4, False), key),
                ("POST", "/v1/completions", story(4), key), ("POST", "/tokenize", {"prompt": "a\u00e9"}, key)]:
            c, r = send(method, path, body, **sent)
            ours = r.status, r.headers["Content-Type"], r.read()
            assert len(r.headers.get_all("X-Request-Id")) == 1
            want = alone.post(path, body, headers=sent) if body else alone.get(path, headers=sent)
            plain = [re.sub(rb'"(id|created|system_fingerprint)":("[^"]*"|\d+)', b"", x) for x in (ours[2], want.read())]
            assert (*ours[:2], plain[0]) == (want.status, want.headers["Content-Type"], plain[1]), path
    c, r = send("GET", "/metrics", **key)
    text = r.read().decode()
    assert len(set(re.findall(r'^vllm:prompt_tokens_total\{replica="(\w+)"', text, re.M))) == 2
    assert text.count("# TYPE vllm:prompt_tokens_total") == 1
    assert send("GET", "/metrics")[1].status == 401


def test_a_stream_whose_server_dies_ends_with_an_error_event(app):
    app(min_replicas=2, max_replicas=2)
    c, r = send("POST", "/v1/completions", story(900))
    assert r.status == 200 and r.readline().startswith(b"data: {")
    for pid in servers():
        os.kill(pid, signal.SIGKILL)
    data = r.read().decode()
    assert data.endswith("\n\ndata: [DONE]\n\n") and "replica_lost" in data.split("\n\n")[-3], data[-500:]
    until(lambda: len(servers()) == 2)  # Ray starts others
    until(lambda: send("POST", "/v1/completions", story(4, False))[1].status == 200)


def test_a_client_that_leaves_ends_its_request(app):
    app()
    c, r = send("POST", "/v1/completions", {**story(900), "n": 16})
    r.readline()
    r.close()
    c.close()
    until(lambda: re.search(r'finished_reason="abort"\} [1-9]', send("GET", "/metrics")[1].read().decode()))


def test_replicas_follow_the_load_and_end_without_cutting_an_answer(app):
    app(max_replicas=3, target_requests=2, upscale_delay_s=1, downscale_delay_s=3)
    busy, failed = threading.Event(), []

    def ask():
        while not busy.is_set():
            r = send("POST", "/v1/completions", story(400))[1]
            data = r.read()
            if r.status != 200 or b"error" in data or not data.endswith(b"data: [DONE]\n\n"):
                failed.append((r.status, data[-300:]))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(ask) for _ in range(8)]
        try:
            until(lambda: len(servers()) == 3)
        finally:
            busy.set()
    until(lambda: len(servers()) == 1)
    assert not failed, failed[:3]
