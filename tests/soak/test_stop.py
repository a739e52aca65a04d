"""SIGTERM at moments drawn from a seed, from before the model is loaded on, while 32 clients stream, wait, leave and
send one byte at a time: the server ends within --shutdown-timeout and what one step takes, with 0, and every request
that it had accepted has an end. LLMQ_STOPS says how often (default 10; make check-hard: 200), LLMQ_SEED repeats a run.
"""
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import threading
import time

import pytest

from harness import LIMIT, ROOT, Server

STOPS = int(os.environ.get("LLMQ_STOPS", "10"))
CLIENTS = 32
KINDS = [
    {"prompt": "The old house", "max_tokens": 30, "stream": True},
    {"prompt": ["The", "A man"], "n": 2, "max_tokens": 20, "temperature": 1},
    {"prompt": "She", "max_tokens": 300, "stream": True, "ignore_eos": True, "logprobs": 2},
    {"prompt": "He said", "max_tokens": 10, "use_beam_search": True, "n": 2},
    {"prompt": "Once", "max_tokens": 40, "guided_json": {"type": "object", "properties": {"a": {"type": "boolean"}},
                                                         "required": ["a"], "additionalProperties": False}},
]


def ended(body, status, data):
    """An answer, an error, or a stream whose last event is one of both."""
    if status != 200 or not body.get("stream"):
        return "choices" in json.loads(data) or "error" in json.loads(data)
    last = data.decode().strip().split("\n\n")[-1]
    return last == "data: [DONE]" or '"error"' in last


def client(port, seed, over, wrong):
    draw = random.Random(seed)
    while not over.is_set():
        body = draw.choice(KINDS)
        data = json.dumps({**body, "seed": draw.randrange(99)}).encode()
        try:
            if draw.random() < 0.3:  # leaves in the middle, or sends a byte at a time
                with socket.create_connection(("127.0.0.1", port), LIMIT) as s:
                    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                              b"Content-Length: %d\r\n\r\n" % len(data))
                    for i in range(draw.randrange(len(data))):
                        s.sendall(data[i:i + 1])
                    time.sleep(draw.random() * 0.01)
                continue
            c = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
            c.request("POST", "/v1/completions", data, {"Content-Type": "application/json"})
            r = c.getresponse()
        except (ConnectionError, http.client.HTTPException):  # nothing was accepted
            continue
        try:
            got = r.read()
        except http.client.IncompleteRead as e:
            wrong.append(("cut off", body, e.partial[-200:]))
            continue
        if not ended(body, r.status, got):
            wrong.append((r.status, body, got[-200:]))
        c.close()


def where_it_hangs(process):
    return subprocess.run(["gdb", "-p", str(process.pid), "-batch", "-ex", "thread apply all bt 12"],
                          capture_output=True, text=True).stdout[-20000:]


@pytest.mark.parametrize("timeout", [0, 1, 30])
def test_a_server_ends_when_it_is_told(llmq, tmp_path, timeout):
    seed = int(os.environ.get("LLMQ_SEED", random.randrange(10**9)))
    draw, took = random.Random(seed + timeout), []
    print(f"\nseed {seed}, --shutdown-timeout {timeout}")
    for i in range(-(-STOPS // 3)):
        with Server(llmq, ROOT / "models/novels-1m", "--max-num-seqs", draw.choice([2, 8, 64]), "--kv-cache-memory",
                    draw.choice(["1M", "16M"]), "--shutdown-timeout", timeout, log=tmp_path / f"log{i}") as s:
            over, wrong = threading.Event(), []
            clients = [threading.Thread(target=client, args=(s.port, draw.randrange(10**9), over, wrong))
                       for _ in range(CLIENTS)]
            for c in clients:
                c.start()
            time.sleep(draw.random() ** 2 * 2)
            told = time.monotonic()
            s.process.send_signal(signal.SIGTERM)
            try:
                code = s.process.wait(timeout + LIMIT)
            except subprocess.TimeoutExpired:
                pytest.fail(f"seed {seed}, round {i}: it still runs\n{where_it_hangs(s.process)}\n{s.output()[-3000:]}")
            took.append(time.monotonic() - told)
            over.set()
            for c in clients:
                c.join(LIMIT)
            assert code == 0 and not wrong, f"seed {seed}, round {i}: {code}, {wrong[:3]}\n{s.output()[-3000:]}"
    print(f"{len(took)} times: ended after {min(took):.2f} to {max(took):.2f} s")
