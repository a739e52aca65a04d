"""Models that are swapped and adapters that come and go, again and again: nothing grows, and answers stay the same bytes.
LLMQ_SWAPS says how often (default 40; make check-hard: 2,000). What it measures is printed (pytest -s)."""
import json
import os
import pathlib
import shutil

import pytest

from harness import ROOT, SANITIZED, until
from helpers import MODEL, TINY, metric
from routed import kids, listed, start, states, text  # noqa: F401 (start is a fixture)

SWAPS = int(os.environ.get("LLMQ_SWAPS", "40"))
KV_KIB = 1024
GOLDEN = ROOT / "tests/golden/lora"


@pytest.fixture
def several(start, tmp_path, monkeypatch):
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")  # else each thread that loads an adapter may begin a heap of its own, any time
    shutil.copytree(GOLDEN, tmp_path / "adapters")
    models = [{"model": str(TINY), "name": "tiny", "adapters": {"plain": "adapters/plain"}}, {"model": str(MODEL), "name": "big"}]
    (tmp_path / "models.json").write_text(json.dumps({"models": models}))
    return lambda *args: start(f"--models={tmp_path}/models.json", "--lora-dir", tmp_path / "adapters", "--kv-cache-memory", f"{KV_KIB}K",
                               "--max-num-seqs", 4, "--threads", 1, *args)


def private_kib(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return sum(int(x.split()[1]) for x in status.splitlines() if x.startswith(("RssAnon", "VmSwap")))


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def keeper(server):
    pid = server.process.pid
    return int(pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text())


def adapter(s, what, name, **more):
    r = s.post(f"/v1/{what}_lora_adapter", {"lora_name": name, **more})
    assert r.status == 200, r.read()


class Growth:
    """Of a process: its private memory and descriptors, from the first look on."""

    def __init__(self, name, pid):
        self.name, self.pid, self.kib, self.fds = name, pid, [private_kib(pid)], [descriptors(pid)]

    def look(self):
        self.kib.append(private_kib(self.pid))
        self.fds.append(descriptors(self.pid))

    def check(self, kib_each, times, fills=0):
        """Private memory by less than so much each time, beside what a thread's stack or a heap's end is rounded up by, and what
        is there from the start and touched for the first time (fills)."""
        grown = self.kib[-1] - self.kib[0]
        print(f"\n{self.name}: private KiB {self.kib[0]} -> {self.kib[-1]} in {times}, descriptors {self.fds[0]} -> {self.fds[-1]}")
        assert self.fds[-1] <= self.fds[0] + 1  # a connection that is not closed yet
        assert SANITIZED or grown < 256 + fills + kib_each * times


def test_swaps(several):
    """Each round the other model, an adapter that is loaded or gone by then, and a response that another model goes on from."""
    s = several("--max-loaded", 1, "--response-store", 8)
    said, fds, at = {}, {}, None
    last = None
    for i in range(SWAPS + 8):
        if i == 8:  # heaps and caches have what they need
            at = [Growth("router", s.process.pid), Growth("keeper", keeper(s))]
        if i % 4 == 0:
            adapter(s, "load", "p", lora_path=["plain", "dora"][i // 4 % 2], model="tiny", load_inplace=True)
        names = [["tiny", "plain", f"p{i // 4 % 2}"], ["big"]][i % 2]
        for name in names:
            answer = text(s, name[:1] if name[0] == "p" and name[1:].isdigit() else name)
            assert said.setdefault(name, answer) == answer, (i, name)
        ask = {"model": names[0], "input": "It was", "max_output_tokens": 4, **({"previous_response_id": last} if i % 5 else {})}
        last = s.post_json("/v1/responses", ask)["id"]
        if i % 4 == 2:
            adapter(s, "unload", "p")
            assert "p" not in listed(s)
        until(lambda: metric(s, "llmq:model_requests_running") == 0 and len(kids(s)) == 1)
        n = descriptors(kids(s)[0])
        assert fds.setdefault(names[0], n) + 1 >= n, f"{names[0]} has {n} descriptors, and had {fds}"
    for g in at:
        g.look()
        g.check(1, SWAPS)
    assert said["p0"] == said["plain"] != said["p1"] and len(said) == 5
    assert metric(s, "llmq:model_loads_total") == SWAPS + 8
    assert s.stop() == 0


def test_adapters_come_and_go(several):
    """In a server that stays."""
    s = several()
    said, at = {}, None
    for i in range(5 * SWAPS + 64):
        if i == 64:
            at = [Growth(*x) for x in [("router", s.process.pid), ("keeper", keeper(s)), ("server", kids(s)[0])]]
        what = ["plain", "dora", "plain.gguf"][i % 3]
        adapter(s, "load", f"p{i % 2}", lora_path=what, model="tiny", load_inplace=i % 5 == 0)
        answer = text(s, f"p{i % 2}")
        assert said.setdefault(what, answer) == answer, (i, what)
        adapter(s, "unload", f"p{i % 2}")
    for g in at:
        g.look()
        g.check(1, 5 * SWAPS, KV_KIB if g.name == "server" else 0)
    assert said["plain"] == said["plain.gguf"] != said["dora"] and states(s) == {"tiny": "loaded", "plain": "loaded", "big": "unloaded"}
