"""What goes wrong around a server: clients that vanish, a full disk, no descriptors left, little
memory, a process that is stopped for a while, a model with numbers that are none. After each the
server answers as before. LLMQ_CHAOS (rounds, default 1) makes the random parts longer."""
import concurrent.futures
import contextlib
import json
import os
import pathlib
import random
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import time

import httpx
import pytest

from harness import LIMIT, Llmq, Server, until
from helpers import NOT_SANITIZED, TINY, metric, wait_metric
from test_streaming import post

ROUNDS = int(os.environ.get("LLMQ_CHAOS", 1))
BODY = {"prompt": "It was", "max_tokens": 8, "temperature": 0}


def fds(server):
    return len(list(pathlib.Path(f"/proc/{server.process.pid}/fd").iterdir()))


def idle(server, n_fds=None):
    wait_metric(server, "vllm:num_requests_running", 0)
    wait_metric(server, "vllm:num_requests_waiting", 0)
    if n_fds is not None:
        until(lambda: fds(server) <= n_fds + 8, lambda: f"{fds(server)} open, {n_fds} before")


def text_of(server, body=BODY):
    return server.post_json("/v1/completions", body)["choices"][0]["text"]


def test_clients_that_break_off_in_every_way(scripted, ask):  # T-49
    """64 at a time: reset, closed in the middle of head, body or answer, one byte at a time, half
    closed. Whoever stays gets the same answer as ever."""
    server = scripted
    want, before = text_of(server), fds(server)
    stays = post(BODY)
    runs = post({"prompt": "a", "max_tokens": 900, "ignore_eos": True, "stream": True, "n": 2})

    def once(i):
        draw = random.Random(i)
        how = draw.choice(["reset", "head", "body", "answer", "slow", "half", "stays"])
        with socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT) as s:
            if how == "stays":
                return text_of(server) == want
            if how == "slow":
                for b in stays[:draw.randrange(30)]:
                    s.sendall(bytes([b]))
                    time.sleep(0.002)
            elif how in ("head", "body"):
                end = stays.index(b"\r\n\r\n") + 4
                s.sendall(stays[:draw.randrange(end) if how == "head" else draw.randrange(end, len(stays))])
            else:
                s.sendall(runs)
                if how == "half":
                    s.shutdown(socket.SHUT_WR)
                time.sleep(draw.random() / 20)
                if how == "answer":
                    s.recv(draw.randrange(1, 500))
            if how == "reset":
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return True
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        assert all(pool.map(once, range(192 * ROUNDS)))
    idle(server, before)
    assert text_of(server) == want
    ask.canary(server)


def is_open(s):
    return not select.select([s], [], [], 0)[0] or s.recv(1, socket.MSG_PEEK) != b""


def test_streams_that_are_reset_leave_no_descriptor_beside_idle_connections(scripted):
    """libmicrohttpd looks at nothing newer than its oldest idle connection: a stream that broke off
    is freed for all that, before the 30 s that an idle one has. (A machine that takes longer for all
    of it does it again.)"""
    runs = post({"prompt": "a", "max_tokens": 900, "ignore_eos": True, "stream": True})

    def connect(n):
        return [socket.create_connection(("127.0.0.1", scripted.port), timeout=LIMIT) for _ in range(n)]

    def freed_before_idle_ones_end():
        before, stays = fds(scripted), connect(32)
        try:
            for s in stays:  # answered, and kept open
                s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            for s in stays:
                assert s.recv(4096).startswith(b"HTTP/1.1 200")
            leave = connect(24)
            for s in leave:  # 8 at a time run, the others sleep
                s.sendall(runs)
                assert s.recv(12) == b"HTTP/1.1 200"
            for s in leave:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                s.close()
            until(lambda: fds(scripted) <= before + len(stays) + 2, lambda: f"{before} {fds(scripted)}")
            return all(is_open(s) for s in stays)
        finally:
            for s in stays:
                s.close()
    until(freed_before_idle_ones_end)


def test_a_server_that_is_stopped_for_a_while_goes_on(server, ask):
    body = {"prompt": "It was", "max_tokens": 300, "temperature": 0, "ignore_eos": True}
    want = text_of(server, body)
    for _ in range(ROUNDS):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = [pool.submit(text_of, server, body) for _ in range(8)]
            for _ in range(4):
                server.process.send_signal(signal.SIGSTOP)
                time.sleep(0.1)
                server.process.send_signal(signal.SIGCONT)
                time.sleep(0.02)
            assert {a.result() for a in answers} == {want}
    ask.canary(server)


@pytest.fixture
def half_a_cpu(llmq, tmp_path):
    """llmq in control groups of its own (version 1): half a CPU, 256 MiB; and the groups."""
    groups = {}
    limits = {"cpu": {"cpu.cfs_period_us": 20000, "cpu.cfs_quota_us": 10000}, "memory": {"memory.limit_in_bytes": 256 << 20}}
    try:
        for kind, files in limits.items():
            group = pathlib.Path(f"/sys/fs/cgroup/{kind}/llmq-test-{os.getpid()}")
            group.mkdir()
            groups[kind] = group
            for name, value in files.items():
                (group / name).write_text(str(value))
        script = tmp_path / "llmq"
        into = "".join(f"echo $$ > {g}/cgroup.procs\n" for g in groups.values())
        script.write_text(f"#!/bin/sh\nset -e\n{into}exec '{llmq.path}' \"$@\"\n")
        script.chmod(0o755)
        if subprocess.run([script, "version"], capture_output=True).returncode:
            raise OSError("no process may be put into it")
        yield Llmq(script), groups
    except OSError as e:
        pytest.skip(f"no control groups of version 1 can be made here: {e}")
    finally:
        for group in groups.values():
            until(lambda: not (group / "cgroup.procs").read_text())
            group.rmdir()


@NOT_SANITIZED  # which itself takes more memory
def test_half_a_cpu_and_little_memory_change_no_bytes(half_a_cpu, server, ask, tmp_path):
    limited, groups = half_a_cpu
    body = {"prompt": "It was", "max_tokens": 300, "temperature": 0, "ignore_eos": True}
    want = text_of(server, body)
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with Server(limited, TINY, log=tmp_path / "log") as s:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert {a.result() for a in [pool.submit(text_of, s, body) for _ in range(16 * ROUNDS)]} == {want}
        idle(s)
    assert s.process.returncode == 0
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    share = (used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime) / (time.monotonic() - began)
    stat = dict(line.split() for line in (groups["cpu"] / "cpu.stat").read_text().splitlines())
    assert int(stat["nr_throttled"]) > 0 or share < 0.45  # it was held back, or others had the processor


def test_who_spoke_while_it_was_stopped_is_heard(hasty):
    """A head has 1 s; the time in which the server was stopped does not count. (A client that is
    itself held up for 1 s tries again.)"""
    def is_heard():
        with socket.create_connection(("127.0.0.1", hasty.port), timeout=LIMIT) as s:
            s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
            hasty.process.send_signal(signal.SIGSTOP)
            time.sleep(1.5)
            s.sendall(b"Connection: close\r\n\r\n")
            hasty.process.send_signal(signal.SIGCONT)
            return s.recv(12) == b"HTTP/1.1 200"
    until(is_heard)


def test_a_log_on_a_full_disk_costs_no_request(serve):
    s = serve(TINY, "--access-log", "/dev/full")
    assert len({text_of(s) for _ in range(3)}) == 1


def test_no_descriptors_left(serve, ask):
    """Connections find no descriptor; when others have gone, those that wait are served."""
    s = serve(TINY)
    want, before = text_of(s), fds(s)
    _, hard = resource.prlimit(s.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(s.process.pid, resource.RLIMIT_NOFILE, (before + 8, hard))
    conns = [socket.create_connection(("127.0.0.1", s.port), timeout=LIMIT) for _ in range(32)]
    until(lambda: fds(s) == before + 8, lambda: f"{fds(s)} open of {before + 8}")
    for c in conns[:16]:
        c.close()
    answers = []
    for c in conns[16:]:
        c.sendall(post({**BODY, "max_tokens": 1}))
    for c in conns[16:]:
        answers.append(c.recv(12))
        c.close()
    assert answers.count(b"HTTP/1.1 200") == 16, answers
    assert text_of(s) == want
    resource.prlimit(s.process.pid, resource.RLIMIT_NOFILE, (hard, hard))
    idle(s, before)
    ask.canary(s)


@NOT_SANITIZED  # which itself ends without memory
def test_no_memory_left(serve, ask):
    """Beyond what it has, the server gets none: large requests are refused or cut, never with a
    crash, and it serves on when there is memory again."""
    s = serve(TINY)
    want = text_of(s)
    pages = int(pathlib.Path(f"/proc/{s.process.pid}/statm").read_text().split()[0])
    room = pages * resource.getpagesize() + (3 << 20)
    resource.prlimit(s.process.pid, resource.RLIMIT_AS, (room, resource.RLIM_INFINITY))
    big = {"prompt": "x " * 500_000, "max_tokens": 2}
    schema = {"prompt": "a", "max_tokens": 3, "guided_regex": "([a-z]{1,40}[0-9]{1,40}){1,40}"}

    def status(body):
        try:
            return s.post("/v1/completions", body).status
        except OSError:
            return 0  # the connection was cut
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        got = list(pool.map(status, [big, schema, {**BODY, "n": 8, "temperature": 1}, BODY] * 8 * ROUNDS))
    assert s.process.poll() is None, s.output()[-2000:]
    assert set(got) <= {0, 200, 400, 413, 500, 503}, got
    resource.prlimit(s.process.pid, resource.RLIMIT_AS,
                     (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    idle(s)
    assert text_of(s) == want
    ask.canary(s)


def test_a_model_that_is_cut_short_ends_the_server_with_one_sentence(serve, tmp_path):
    """Its threads find out together; none is left to the system's default, which is a core dump."""
    for i in range(3):
        folder = tmp_path / f"model{i}"
        shutil.copytree(TINY, folder)
        s = serve(folder, "--threads", 4)
        (folder / "model.safetensors").chmod(0o644)
        os.truncate(folder / "model.safetensors", 4096)
        with contextlib.suppress(OSError):
            s.post("/v1/completions", BODY)
        assert s.process.wait(LIMIT) == 1, s.output()
        assert s.output().count("llmq: a file that is being read was cut short") == 1


@pytest.fixture(scope="module")
def with_nan(tmp_path_factory):
    """The tiny model where one token's embedding is no number; its head is that of the original."""
    folder = tmp_path_factory.mktemp("nan") / "tiny"
    shutil.copytree(TINY, folder)
    data = (folder / "model.safetensors").read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    header, planes = json.loads(data[8:8 + n]), bytearray(data[8 + n:])
    embed = header["model.embed_tokens.weight"]
    a, b = embed["data_offsets"]
    header["lm_head.weight"] = {**embed, "data_offsets": [len(planes), len(planes) + b - a]}
    planes += planes[a:b]
    token = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]["Z"]
    row = (b - a) // embed["shape"][0]
    planes[a + token * row:a + (token + 1) * row] = struct.pack("<H", 0x7fc0) * (row // 2)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + planes)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    return folder


@pytest.mark.parametrize("args", [[], ["--activations", "f32", "--kv-cache-dtype", "f32"],
                                  ["--kv-cache-dtype", "f16"], ["--kv-cache-dtype", "bf16"],
                                  ["--kv-cache-dtype", "int8"], ["--kv-cache-dtype", "fp8"],
                                  ["--kv-cache-dtype", "int4", "--speculative-ngram"]],
                         ids=["default", "f32", "f16", "bf16", "int8", "fp8", "int4"])
def test_numbers_that_are_none_end_one_request(with_nan, serve, ask, args):  # T-37
    """It gets a 500, or an error in its stream; those beside it get the bytes that they get alone."""
    s = serve(with_nan, *args)
    bodies = [{"prompt": f"Tale {i}: it was", "max_tokens": 40, "ignore_eos": True, "logprobs": 2,
               "temperature": i % 2, "seed": i} for i in range(6)]
    alone = [s.post_json("/v1/completions", b)["choices"] for b in bodies]
    bad = {"prompt": "It was Z and", "max_tokens": 5}
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(s.post_json, "/v1/completions", b) for b in bodies]
        failed = [pool.submit(s.post, "/v1/completions", {**bad, "prompt": "x " * i + bad["prompt"]})
                  for i in range(6)]
        for f in failed:
            ask.check_error(f.result(), 500, code="generation_failed", type="server_error")
        assert [a.result()["choices"] for a in asked] == alone
    with httpx.stream("POST", s.url + "/v1/completions", json={**bad, "stream": True}, timeout=LIMIT) as r:
        answer = r.read()
        assert r.status_code == 500 or b'"error"' in answer, answer
    assert metric(s, "vllm:num_requests_running") == 0
    ask.canary(s)
