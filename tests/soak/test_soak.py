"""What a server must stand for long: many requests without growing, clients that come and go, idle connections.
Run by make check-hard; LLMQ_SOAK says how many requests (default 20,000; with fewer the caches go on filling),
LLMQ_SOAK_MINUTES how long traffic of every kind goes on (default 1; make check-hard: 30). What it measures is printed
(pytest -s).
"""
import http.client
import json
import os
import pathlib
import resource
import socket
import threading
import time

import pytest

import load_to_limits
from harness import LIMIT, ROOT, Server, until, with_template

TINY = ROOT / "models/novels-1m"
REQUESTS = int(os.environ.get("LLMQ_SOAK", "20000"))
MINUTES = float(os.environ.get("LLMQ_SOAK_MINUTES", "1"))
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "yy"]}, "b": {"type": "boolean"}},
          "required": ["a", "b"], "additionalProperties": False}


@pytest.fixture(scope="module")
def tiny(llmq, tmp_path_factory):
    # a pool of KV blocks that the first fifth of the requests fills: its memory is taken as it is first used
    with Server(llmq, TINY, "--speculative-ngram", "--kv-cache-memory", "8M",
                log=tmp_path_factory.mktemp("soak") / "log") as s:
        yield s


def metric(server, name):
    lines = server.get("/metrics").read().decode().splitlines()
    return sum(float(x.rsplit(" ", 1)[1]) for x in lines if x.startswith(name + "{"))


def idle(server):
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    until(lambda: not any(metric(server, f"vllm:{n}") for n in names), lambda: "sequences or blocks are left")


def private_kib(server):
    """RssAnon + VmSwap, which a leak cannot hide from."""
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return sum(int(x.split()[1]) for x in status.splitlines() if x.startswith(("RssAnon", "VmSwap")))


def descriptors(server):
    return len(list(pathlib.Path(f"/proc/{server.process.pid}/fd").iterdir()))


def body_of(i):
    """Every kind in turn; texts differ, so that caches fill."""
    text = f"Number {i} of the old house"
    kinds = [
        {"prompt": text, "max_tokens": 4},
        {"prompt": text, "max_tokens": 4, "logprobs": 3, "echo": True},
        {"prompt": text, "max_tokens": 24, "guided_json": {**SCHEMA, "title": str(i % 64)}},
        {"prompt": [text, text + "s"], "n": 2, "max_tokens": 3, "temperature": 1, "stop": ["e", "a"]},
        {"prompt": text, "max_tokens": 4, "stream": True, "stream_options": {"include_usage": True}},
        {"prompt": text, "max_tokens": 3, "use_beam_search": True, "n": 2},
        {"prompt": text, "temperature": 9},
    ]
    return kinds[i % (len(kinds) + 1)] if i % (len(kinds) + 1) < len(kinds) else None


def usage_of(body, data):
    return json.loads(data.decode().split("\n\n")[-3][6:] if body.get("stream") else data)["usage"]


def work(server, numbers, wrong, used):
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT)
    for i in numbers:
        body = body_of(i)
        if body is None:  # leaves in the middle
            with socket.create_connection(("127.0.0.1", server.port)) as s:
                data = json.dumps({"prompt": "a", "max_tokens": 400, "ignore_eos": True,
                                   "stream": i % 3 == 0}).encode()
                s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                          b"Content-Length: %d\r\n\r\n" % len(data) + data)
                time.sleep(0.002)
            continue
        c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        data = r.read()
        if r.status != (400 if body.get("temperature") == 9 else 200):
            wrong.append((i, r.status))
        elif r.status == 200:
            used.append(usage_of(body, data))
    c.close()


def run(server, first, n):
    """The usage of every answer."""
    wrong, used = [], []
    threads = [threading.Thread(target=work, args=(server, range(first + k, first + n, 8), wrong, used))
               for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong, wrong[:5]
    idle(server)
    return used


def test_many_requests_leave_nothing(tiny):  # T-01, T-22
    """From a first fifth, in which caches fill, to the end private memory grows by less than 1 KiB a request."""
    used = run(tiny, 0, REQUESTS // 5)
    files, at = descriptors(tiny), [private_kib(tiny)]
    for part in range(1, 5):
        used += run(tiny, part * (REQUESTS // 5), REQUESTS // 5)
        at.append(private_kib(tiny))
    # what answers said they used is what was counted of those that ended; those that left come on top
    sums = {k: sum(u[k] for u in used) for k in ("prompt_tokens", "completion_tokens")}
    assert metric(tiny, "vllm:request_generation_tokens_sum") == sums["completion_tokens"]
    assert metric(tiny, "vllm:generation_tokens_total") >= sums["completion_tokens"]
    assert metric(tiny, "vllm:prompt_tokens_total") >= sums["prompt_tokens"]
    growth = (at[-1] - at[0]) / (4 * (REQUESTS // 5))
    print(f"\n{REQUESTS} requests: private KiB {at}, {growth:.3f} KiB a request; descriptors {files}, "
          f"then {descriptors(tiny)}")
    assert growth < 1
    assert descriptors(tiny) <= files + 2


def test_traffic_of_every_kind_goes_on(llmq, tmp_path):  # T-01
    """Four times as many clients as places, for MINUTES: in no minute in which something runs does nothing come out,
    every request ends, and at the end nothing is left."""
    with Server(llmq, TINY, "--max-num-seqs", 4, "--kv-cache-memory", "2M", log=tmp_path / "log") as s:
        wrong, used, over = [], [], threading.Event()

        def client(k):
            for first in range(k * 10**6, (k + 1) * 10**6, 16):
                if over.is_set():
                    return
                work(s, range(first, first + 16), wrong, used)
        clients = [threading.Thread(target=client, args=(k,)) for k in range(16)]
        for c in clients:
            c.start()
        end, made, still = time.monotonic() + 60 * MINUTES, [], 0
        while time.monotonic() < end:
            made.append(metric(s, "vllm:generation_tokens_total"))
            still = still + 1 if len(made) > 1 and made[-1] == made[-2] and metric(s, "vllm:num_requests_running") else 0
            assert still < 12, f"nothing came out for a minute: {made[-14:]}"
            over.wait(min(5, max(0, end - time.monotonic())))
        over.set()
        for c in clients:
            c.join(600)
        assert not wrong and not any(c.is_alive() for c in clients), wrong[:5]
        idle(s)
        print(f"\n{MINUTES:g} minutes, 16 clients of 4 places: {len(used)} answers, "
              f"{metric(s, 'vllm:generation_tokens_total'):.0f} tokens, private {private_kib(s)} KiB")


def test_a_thousand_alike_among_a_thousand_others(llmq, tmp_path):  # T-38
    """One greedy prompt 1,000 times beside as many others: one text and one list of logprobs."""
    same = {"prompt": "The old house stood", "max_tokens": 12, "temperature": 0, "logprobs": 3, "ignore_eos": True}
    with Server(llmq, TINY, "--max-num-seqs", 256, "--max-num-batched-tokens", 300, "--kv-cache-memory", "6M",
                log=tmp_path / "log") as s:
        alone = s.post_json("/v1/completions", same)["choices"][0]
        got, lock = [], threading.Lock()

        def client(k):
            c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=600)
            for i in range(k, 2000, 128):
                noise = {"prompt": f"{i} " * (1 + i % 90), "max_tokens": 1 + i % 40, "seed": i, "temperature": 1}
                c.request("POST", "/v1/completions", json.dumps(noise if i & 1 else same),
                          {"Content-Type": "application/json"})
                r = c.getresponse()
                answer = json.loads(r.read())
                if not i & 1:
                    with lock:
                        got.append(answer["choices"][0] if r.status == 200 else answer)
            c.close()
        clients = [threading.Thread(target=client, args=(k,)) for k in range(128)]
        for c in clients:
            c.start()
        for c in clients:
            c.join()
        other = [g for g in got if g != alone]
        print(f"\n{len(got)} answers beside 1,000 others, {len(other)} of them unlike the one alone; "
              f"{metric(s, 'vllm:num_preemptions_total'):.0f} pre-emptions")
        assert len(got) == 1000 and not other, other[:2]


def test_clients_that_leave_200_times_a_second(llmq, tiny):  # T-50
    before = descriptors(tiny)
    n = 200 * (60 if REQUESTS >= 20000 else 5)
    refused = metric(tiny, "vllm:admission_rejections_total")
    p = llmq("bench", "serve", tiny.url, "--load", "abort", "--request-rate", 200, "--num-prompts", n, "--json",
             code=None, timeout=10 * LIMIT)
    got = json.loads(p.stdout)
    idle(tiny)
    # where the machine is slow the queue is full
    refused = metric(tiny, "vllm:admission_rejections_total") - refused
    assert got["aborted"] > 0 and got["aborted"] + got["failed"] == n and got["failed"] == refused, p.stderr
    until(lambda: descriptors(tiny) <= before + 2, lambda: f"{descriptors(tiny)} open, {before} before")
    print(f"\n{n} clients, {refused:.0f} of them refused, left in {got['duration']:.0f} s; descriptors {before}, "
          f"then {descriptors(tiny)}")


def test_idle_connections_beside_64_streams(llmq, tiny):
    """1,000 connections that do nothing: all are there, and streams go on beside them. Times are printed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 2000), hard), hard))
    row = ("itl_p50", "itl_p99", "ttft_p99", "output_throughput")
    def bench(streams):
        got = llmq.json("bench", "serve", tiny.url, "--concurrency", streams, "--num-prompts", 2 * max(streams, 8),
                        "--input-len", 32, "--output-len", 128, timeout=10 * LIMIT)
        return {k: round(got[k], 4) for k in row}
    alone = {n: bench(n) for n in (1, 64)}
    held = [socket.create_connection(("127.0.0.1", tiny.port)) for _ in range(1000)]
    try:
        assert metric(tiny, "llmq:http_connections") >= 1000
        beside = {n: bench(n) for n in (1, 64)}
    finally:
        for s in held:
            s.close()
    idle(tiny)
    print(f"\nalone {alone}\nbeside 1,000 idle connections {beside}")
    assert all(r["output_throughput"] > 0 for r in beside.values())


def test_memory_stays_below_what_was_printed(llmq, tmp_path):
    """All limits met at once, again and again."""
    peak, said, seen, _ = load_to_limits.run(llmq, TINY, max(2, REQUESTS // 200), tmp_path / "log")
    used = said["total_bytes"] - said["templates_bytes"] - said["grammars_bytes"]  # nothing here is a large template
    print(f"\n{sum(seen.values())} requests at the limits {seen}: peak {peak >> 20} MiB, printed {used >> 20} MiB "
          f"without templates and grammars, {said['total_bytes'] >> 20} with them")
    assert peak < used


def test_templates_and_grammars_stay_below_what_was_printed(llmq, tmp_path):
    """As large as they may be, again and again, and grammars that nobody had before."""
    model = with_template(tmp_path / "m", load_to_limits.GROWS)
    peak, said, seen, stays = load_to_limits.run_texts(llmq, model, max(2, REQUESTS // 2000), tmp_path / "log")
    print(f"\n{sum(seen.values())} requests with large templates and grammars {seen}: peak {peak >> 20} MiB, printed "
          f"{said['total_bytes'] >> 20} MiB, {said['templates_bytes'] >> 20} of it for templates and "
          f"{said['grammars_bytes'] >> 20} for grammars; {stays >> 20} MiB stay")
    assert load_to_limits.LARGEST_TEXTS < peak < said["total_bytes"]
