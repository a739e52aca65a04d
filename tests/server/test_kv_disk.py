"""The KV cache on disk (--kv-cache-dir): the same bytes from disk, memory or none, after restarts, kills, full
and damaged disks, and beside another server."""
import concurrent.futures
import fcntl
import json
import os
import random
import re
import resource
import shutil
import signal
import stat
import threading
import time

import pytest

from harness import ROOT, Server, until
from helpers import NOT_SANITIZED, TINY

SMALL = ["--max-num-batched-tokens", 8, "--block-size", 8, "--max-num-seqs", 4]
# LLMQ_KILLS: how often a server is killed while it writes (make check-hard: 200)
KILLS = int(os.environ.get("LLMQ_KILLS", "5"))
# Full attention, windows, sinks, shared layers, an indexer beside latents; states alone and beside attention
MODELS = ["llama-128", "gemma3", "gpt-oss-sinks", "gemma3n", "deepseek-v32", "deepseek-v4", "mamba2", "falcon-h1", "qwen3-next", "lfm2"]


def disk(folder, size="64M"):
    return ["--kv-cache-dir", folder, "--kv-cache-disk", size]


def ids(n, seed=1):
    return random.Random(seed).choices(range(3, 60), k=n)


def metrics(server, name=None):
    got = {m[1]: float(m[2]) for m in re.finditer(r"^llmq:kv_disk_(\w+?)(?:_total)?\{.*\} (\S+)$",
                                                  server.get("/metrics").read().decode(), re.M)}
    return got[name] if name else got


def ask(server, prompt, **more):
    """(what the answer is, tokens of the prompt that were not computed)"""
    body = {"prompt": prompt, "max_tokens": 6, "ignore_eos": True, "logprobs": 2, "temperature": 0, **more}
    got = server.post_json("/v1/completions", body)
    c = got["choices"][0]
    return (c.get("text"), c["logprobs"], c.get("token_ids")), got["usage"]["prompt_tokens_details"]["cached_tokens"]


WAYS = [{}, {"temperature": 0.9, "seed": 7}]


def answers(server, prompt):
    return [ask(server, prompt, **way)[0] for way in WAYS]


def files(folder):
    return sorted(f for f in os.listdir(folder) if re.fullmatch(r"[0-9a-f]{32}\.[ksw]", f))


def taken(folder):
    """Bytes in whole blocks of the file system."""
    return sum(-(-(folder / f).stat().st_size // 4096) * 4096 for f in files(folder))


@pytest.mark.parametrize("name", MODELS)
def test_answers_are_the_same_bytes_with_a_hit_from_disk_from_memory_or_none(llmq, tmp_path, name):
    model, prompt = ROOT / "tests/golden/arch" / name, ids(100)
    with Server(llmq, model, *SMALL, "--no-enable-prefix-caching") as s:
        right = answers(s, prompt)
    with Server(llmq, model, *SMALL, *disk(tmp_path / "kv")) as s:
        assert answers(s, prompt) == right
        in_memory, cached = ask(s, prompt)
        assert in_memory == right[0] and cached >= 48 and metrics(s, "hits") == 0
    with Server(llmq, model, *SMALL, *disk(tmp_path / "kv")) as s:
        from_disk, again = ask(s, prompt)
        assert from_disk == right[0] and again == cached
        assert metrics(s, "hits") == 1 and metrics(s, "tokens") >= cached
        assert answers(s, prompt) == right and metrics(s, "reads") > 0 == metrics(s, "damaged")
        longer, found = ask(s, prompt + ids(12, 3))
    with Server(llmq, model, *SMALL, "--no-enable-prefix-caching") as s:
        assert ask(s, prompt + ids(12, 3))[0] == longer and found >= 48


@pytest.mark.parametrize("name", ["llama-128", "gemma3", "falcon-h1"])
def test_what_leaves_memory_comes_back(llmq, tmp_path, name):
    """A cache for little more than one of these prompts."""
    model, prompts = ROOT / "tests/golden/arch" / name, [ids(90, k) for k in range(6)]
    need = llmq.json("serve", model, *SMALL, "--max-num-seqs", 1, "--max-model-len", 112, "--dry-run")
    few = ["--max-num-batched-tokens", 8, "--block-size", 8, "--max-num-seqs", 2, "--max-model-len", 112,
           "--kv-cache-memory", int(need["kv_bytes"] * 1.5)]
    with Server(llmq, model, *few, "--no-enable-prefix-caching") as s:
        right = [ask(s, p)[0] for p in prompts]
    with Server(llmq, model, *few, *disk(tmp_path / "kv")) as s:
        for _ in range(3):
            with concurrent.futures.ThreadPoolExecutor(2) as two:
                assert [a for a, _ in two.map(lambda p: ask(s, p), prompts)] == right
        m = metrics(s)
        assert m["hits"] > 0 and m["tokens"] > 0 and m["writes"] > 0 and m["failed"] == m["damaged"] == 0, m


def test_who_asks_with_another_salt_model_or_type_finds_nothing(llmq, tmp_path):
    prompt = ids(100)
    with Server(llmq, TINY, *disk(tmp_path / "kv")) as s:
        ask(s, prompt, cache_salt="mine")
    there = files(tmp_path / "kv")
    assert there
    for model, args, salt, hit in ((TINY, [], "mine", True), (TINY, [], None, False), (TINY, [], "other", False),
                                   (TINY, ["--kv-cache-dtype", "int8"], "mine", False),
                                   (ROOT / "models/novels-6m", [], "mine", False)):
        with Server(llmq, model, *args, *disk(tmp_path / "kv")) as s:
            more = {"cache_salt": salt} if salt else {}
            assert (ask(s, prompt, **more)[1] > 0) == hit, (model, args, salt)
    assert set(there) < set(files(tmp_path / "kv"))


def test_another_rope_beside_the_same_weights_finds_nothing(llmq, tmp_path):
    prompt = ids(100)
    shutil.copytree(TINY, tmp_path / "scaled")
    config = json.loads((tmp_path / "scaled/config.json").read_text())
    config["rope_theta"] = 2 * config.get("rope_theta", 10000)
    (tmp_path / "scaled/config.json").write_text(json.dumps(config))
    for model, found in ((TINY, 0), (tmp_path / "scaled", 0), (TINY, 96), (tmp_path / "scaled", 96)):
        with Server(llmq, model, *disk(tmp_path / "kv")) as s:
            assert ask(s, prompt)[1] == found, model


def test_files_are_private_and_the_folder_is_bounded(llmq, tmp_path):
    folder, limit = tmp_path / "kv", 256 << 10
    with Server(llmq, TINY, *disk(folder, limit)) as s:
        for k in range(8):
            ask(s, ids(400, k))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE((folder / f).stat().st_mode) for f in os.listdir(folder)} == {0o600}
    assert limit / 2 < taken(folder) <= limit
    with Server(llmq, TINY, *disk(folder, limit)) as s:  # the last prompt is what was kept
        assert ask(s, ids(400, 7))[1] > 0 and ask(s, ids(400, 0))[1] == 0
    assert taken(folder) <= limit
    with Server(llmq, TINY, *disk(folder, limit // 4)) as s:
        assert taken(folder) <= limit // 4 and metrics(s, "bytes") == taken(folder)


def spoil(path, how, draw):
    data = bytearray(path.read_bytes())
    if how == "bit":
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    elif how == "cut":
        del data[draw.randrange(len(data)):]
    elif how == "longer":
        data += b"\0"
    elif how == "zeros":
        data[:] = bytes(len(data))
    path.write_bytes(data)
    if how == "link":
        path.unlink()
        path.symlink_to("/etc/hostname")
    elif how == "folder":
        path.unlink()
        path.mkdir()
    elif how == "pipe":
        path.unlink()
        os.mkfifo(path)


def test_damaged_and_foreign_files_are_misses(llmq, tmp_path):
    folder, draw = tmp_path / "kv", random.Random(5)
    prompts = [ids(100, k) for k in range(8)]
    with Server(llmq, TINY, "--no-enable-prefix-caching") as s:
        right = [ask(s, p)[0] for p in prompts]
    with Server(llmq, TINY, *disk(folder)) as s:
        for p in prompts:
            ask(s, p)
    names = files(folder)
    for name, how in zip(draw.sample(names, 16), ["bit", "cut", "longer", "zeros"] * 3 + ["link", "folder", "pipe", "swap"]):
        if how == "swap":
            (folder / name).write_bytes((folder / next(n for n in names if n != name)).read_bytes())
        else:
            spoil(folder / name, how, draw)
    (folder / "notes.txt").write_text("mine")
    with Server(llmq, TINY, *disk(folder)) as s:
        assert [ask(s, p)[0] for p in prompts] == right
        assert metrics(s, "damaged") > 0
    assert (folder / "notes.txt").read_text() == "mine"
    damaged = 2
    for _ in range(4):  # what is damaged behind what was missing is found once that is there again
        with Server(llmq, TINY, *disk(folder)) as s:
            assert [ask(s, p)[0] for p in prompts] == right
            damaged = metrics(s, "damaged")
    assert damaged <= 1  # the folder under a file's name is nobody's to remove


def test_empty_files_are_written_again(llmq, tmp_path):
    """A power cut leaves many of them at once, as nothing waits for the disk."""
    folder = tmp_path / "kv"
    with Server(llmq, TINY, *disk(folder)) as s:
        right, _ = ask(s, ids(100, 1))
    for name in files(folder):
        (folder / name).write_bytes(b"")
    with Server(llmq, TINY, *disk(folder)) as s:
        assert ask(s, ids(100, 1)) == (right, 0)
    with Server(llmq, TINY, *disk(folder)) as s:
        assert ask(s, ids(100, 1)) == (right, 96)
        assert metrics(s, "damaged") == 0


def test_a_full_disk_goes_on_serving(llmq, tmp_path):
    """No file may grow beyond its head: as on a disk without room, each write fails."""
    args = ["--kv-cache-memory", "400K", "--max-model-len", 512, "--max-num-seqs", 2]
    with Server(llmq, TINY, *args, "--no-enable-prefix-caching") as s:
        right = [ask(s, ids(300, k))[0] for k in range(4)]
    small = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # noqa: E731
    read, write = os.pipe()  # a log in a file would have the limit too

    class Limited:
        path = llmq.path

        @staticmethod
        def start(*a, stdout, stderr, **more):
            return llmq.start(*a, stdout=write, stderr=write, preexec_fn=small, **more)

    log = open(tmp_path / "log", "wb", buffering=0)
    copy = threading.Thread(target=lambda: [log.write(b) for b in iter(lambda: os.read(read, 4096), b"")])
    copy.start()
    with Server(Limited, TINY, *args, *disk(tmp_path / "kv"), log=tmp_path / "log") as s:
        os.close(write)
        for _ in range(2):
            assert [ask(s, ids(300, k))[0] for k in range(4)] == right
        m = metrics(s)
        assert m["failed"] > 0 == m["writes"] and not files(tmp_path / "kv"), m
        assert s.stop() == 0
    copy.join()
    log.close()
    assert (tmp_path / "log").read_text().count("--kv-cache-dir: not written: ") == 1


def test_two_servers_share_a_folder(llmq, tmp_path):
    folder, limit = tmp_path / "kv", 512 << 10
    few = ["--kv-cache-memory", "400K", "--max-model-len", 512, "--max-num-seqs", 2]
    prompts = [ids(300, k) for k in range(6)]
    with Server(llmq, TINY, *few, "--no-enable-prefix-caching") as s:
        right = [ask(s, p)[0] for p in prompts]
    with Server(llmq, TINY, *few, *disk(folder, limit)) as a, Server(llmq, TINY, *few, *disk(folder, limit)) as b:
        with concurrent.futures.ThreadPoolExecutor(4) as four:
            jobs = [(s, k) for _ in range(3) for k in range(6) for s in (a, b)]
            assert [x for x, _ in four.map(lambda j: ask(j[0], prompts[j[1]]), jobs)] == [right[k] for _, k in jobs]
        assert metrics(a, "damaged") == metrics(b, "damaged") == 0
    assert 0 < taken(folder) <= limit  # once they have ended: a file may go while it is looked at
    with Server(llmq, TINY, *disk(folder, "16M")) as a:
        ask(a, prompts[0])
        a.stop()
        with Server(llmq, TINY, *disk(folder, "16M")) as b:  # what one wrote the other reads
            assert ask(b, prompts[0]) == (right[0], 288)


@NOT_SANITIZED
def test_a_model_that_was_unloaded_finds_what_it_had(llmq, tmp_path):
    """Several models in one server, one of them loaded at a time: their servers share the folder."""
    for name in ("novels-1m", "novels-6m"):
        shutil.copytree(ROOT / "models" / name, tmp_path / "models" / name)
    prompt = ids(100)
    with Server(llmq, tmp_path / "models", "--max-loaded", 1, *disk(tmp_path / "kv")) as s:
        first, second = [[ask(s, prompt, model=name) for name in ("novels-1m", "novels-6m")] for _ in range(2)]
    assert [a for a, _ in first] == [a for a, _ in second]
    assert [c for _, c in first] == [0, 0] and [c for _, c in second] == [96, 96]


def test_killed_while_it_writes_it_leaves_nothing_that_is_wrong(llmq, tmp_path):
    folder, draw = tmp_path / "kv", random.Random(11)
    few = ["--kv-cache-memory", "400K", "--max-model-len", 512, "--max-num-seqs", 2]
    prompts = [ids(300, k) for k in range(12)]
    with Server(llmq, TINY, *few, "--no-enable-prefix-caching") as s:
        right = [ask(s, p)[0] for p in prompts]
    for kill in range(KILLS):
        with Server(llmq, TINY, *few, *disk(folder, "1M")) as s:
            done = threading.Event()

            def load():
                while not done.is_set():
                    k = draw.randrange(len(prompts))
                    try:
                        assert ask(s, prompts[k])[0] == right[k], kill
                    except OSError:  # it was killed
                        return

            with concurrent.futures.ThreadPoolExecutor(2) as two:
                loads = [two.submit(load) for _ in range(2)]
                until(lambda: metrics(s, "writes") > 20 * draw.random())
                if kill % 3 == 2:  # while it writes all that is cached
                    done.set()
                    for x in loads:  # one that comes later is refused
                        x.result()
                    s.process.send_signal(signal.SIGTERM)
                    time.sleep(draw.uniform(0, 0.1))
                s.stop(signal.SIGKILL)
                done.set()
                for x in loads:
                    x.result()
    # Room for all: what a miss writes may not take the place of what a later prompt would find
    with Server(llmq, TINY, *few, *disk(folder, "16M")) as s:
        assert [ask(s, p)[0] for p in prompts] == right
        m = metrics(s)
        assert m["hits"] > 0 == m["damaged"], m


@pytest.mark.parametrize("args, says", [
    (["--kv-cache-dir", "x"], "--kv-cache-dir DIR and --kv-cache-disk SIZE: expected both"),
    (["--kv-cache-disk", "1M"], "--kv-cache-dir DIR and --kv-cache-disk SIZE: expected both"),
    (["--no-enable-prefix-caching", *disk("x")], "--kv-cache-dir goes with --enable-prefix-caching"),
])
def test_options_that_do_not_go_together(llmq, args, says):
    assert says in llmq("serve", TINY, *args, code=2).stderr


def test_what_the_queues_take_is_foretold(llmq, tmp_path):
    with_disk = llmq.json("serve", TINY, "--dry-run", *disk(tmp_path / "kv"))
    without = llmq.json("serve", TINY, "--dry-run")
    assert with_disk["total_bytes"] == without["total_bytes"] + with_disk["kv_disk_bytes"]
    assert "kv_disk_bytes" not in without and not (tmp_path / "kv").exists()


def test_folders_that_will_not_do(llmq, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "odd/llmq-kv.lock").mkdir(mode=0o700, parents=True)
    (tmp_path / "odd").chmod(0o700)
    for name, size, says in (("file", "1M", "expected a folder"), ("open", "1M", "nobody else may write, found mode 0777"),
                             ("missing/too", "1M", "No such file"), ("odd", "1M", "odd/llmq-kv.lock: Is a directory"),
                             ("good", "1K", "expected 12288 bytes or more, as a block takes")):
        got = llmq("serve", TINY, "--port", 0, *disk(tmp_path / name, size), code=None)
        assert got.returncode and f"--kv-cache-dir: {tmp_path / name}" in got.stderr and says in got.stderr, got.stderr


def test_the_end_does_not_wait_for_a_folder_that_another_has(serve, tmp_path):
    """What is not saved by then is a miss of the next server, and a line says so."""
    args = [TINY, *disk(tmp_path / "kv"), "--shutdown-timeout", 0]
    s = serve(*args)
    prompt = ids(200)
    want = ask(s, prompt)[0]
    with open(tmp_path / "kv/llmq-kv.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert s.stop() == 0
    assert re.search(r"--kv-cache-dir: not written: \d+ parts of blocks in the time that there was", s.output())
    assert not files(tmp_path / "kv")
    again = serve(*args)
    assert ask(again, prompt) == (want, 0)
    assert again.stop() == 0 and files(tmp_path / "kv")
