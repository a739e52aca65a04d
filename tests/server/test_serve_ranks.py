"""One model served by several processes (ranks) that each have a part of it: the bytes of one process, whatever their
number; what ends one ends all, and says so. Over sockets, and by each mpirun that is here."""
import concurrent.futures
import json
import os
import shutil
import signal
import subprocess

import pytest

from harness import LIMIT, ROOT, Llmq, Server, until

DENSE, MOE, HYBRID = [ROOT / x for x in ("models/novels-1m", "tests/golden/arch/mixtral-moe", "tests/golden/arch/qwen3.5")]
LAUNCHERS = [x for x in ("mpirun.openmpi", "mpirun.mpich") if shutil.which(x)] or \
    [x for x in ["mpirun"] if shutil.which(x)]
# Open MPI refuses root, and more ranks than cores, unless it is told.
MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
       "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}


class Ranks:
    """A server of n ranks over sockets; rank 0 is `server`, the others are `others`."""

    def __init__(self, llmq, folder, n, model, *args):
        def env(i):
            return {"LLMQ_RANK": str(i), "LLMQ_RANKS": str(n), "LLMQ_RANK_SOCKETS": f"{folder}/r"} if n > 1 else {}
        self.logs = [open(folder / f"rank{i}.log", "w+") for i in range(n)]
        self.others = [llmq.start("serve", model, "--port", 0, "--threads", 1, *args, stdout=self.logs[i],
                                  stderr=self.logs[i], env={**os.environ, **env(i)}) for i in range(1, n)]
        try:
            self.server = Server(llmq, model, "--threads", 1, *args, env=env(0), log=folder / "rank0.log").wait_ready()
        except BaseException:
            self.kill()
            raise

    def kill(self):
        for p in self.others:
            p.kill()
            p.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.stop(signal.SIGKILL)
        self.kill()


def requests_of(model):
    """Greedy and drawn, short and long, with logprobs, some that begin alike, and a search."""
    prompts = [[1, 9, 17, 33], [1, 9, 17, 33, 7, 21, 60, 61] * 6, [1, 50, 3]]
    for i in range(9):
        yield {"model": model.name, "prompt": prompts[i % 3] + ([i] if i > 5 else []), "max_tokens": 12 + i,
               "temperature": 0 if i % 2 else 1.1, "seed": i, "logprobs": 4, "return_token_ids": True, "ignore_eos": True}
    yield {"model": model.name, "prompt": prompts[0], "max_tokens": 6, "use_beam_search": True, "best_of": 3, "n": 2,
           "temperature": 0, "return_token_ids": True}
    yield {"model": model.name, "prompt": prompts[1], "max_tokens": 1, "echo": True, "logprobs": 2, "temperature": 0}


def answers(server, model):
    """Of all requests at once, without what differs from one server to the next."""
    def one(body):
        a = server.post_json("/v1/completions", body)
        return {k: v for k, v in a.items() if k not in ("id", "created", "usage")}  # what was cached depends on who came first
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        return list(pool.map(one, requests_of(model)))


@pytest.fixture(scope="module")
def alone(llmq, tmp_path_factory):
    """The answers of one process, by model."""
    found = {}
    for model in (DENSE, MOE, HYBRID):
        with Ranks(llmq, tmp_path_factory.mktemp("alone"), 1, model) as r:
            found[model] = answers(r.server, model)
    return found


@pytest.mark.parametrize("model, n", [(DENSE, 2), (DENSE, 4), (MOE, 2), (MOE, 4), (HYBRID, 2)],
                         ids=lambda x: getattr(x, "name", str(x)))
def test_answers_are_the_bytes_of_one_process(llmq, tmp_path, alone, n, model):
    with Ranks(llmq, tmp_path, n, model) as r:
        assert answers(r.server, model) == alone[model]
        assert answers(r.server, model) == alone[model], "and again, with what the cache has by now"
        figures = r.server.get("/metrics").read().decode()
        sent = next(x for x in figures.splitlines() if x.startswith("llmq:ranks_sent_bytes_total"))
        assert float(sent.split()[-1]) > 0
        assert r.server.stop() == 0, r.server.output()
        assert [p.wait(LIMIT) for p in r.others] == [0] * (n - 1)
    assert all(log.read() == "" for log in r.logs[1:]), "rank 0 alone speaks"


WINDOWS = ROOT / "tests/golden/arch/gemma3"


@pytest.mark.parametrize("model, n", [(DENSE, 2), (DENSE, 3), (HYBRID, 2), (WINDOWS, 2)], ids=lambda x: getattr(x, "name", str(x)))
def test_the_cache_on_disk_has_the_blocks_of_all_ranks(llmq, tmp_path, model, n):
    args = ["--kv-cache-dir", tmp_path / "kv", "--kv-cache-disk", "64M", "--max-num-seqs", 2, "--block-size", 8]
    prompts = [[1] + [(i * 7 + k * (i + 3)) % 50 + 3 for k in range(100)] for i in range(8)]

    def ask(server, prompt):
        a = server.post_json("/v1/completions", {"model": model.name, "prompt": prompt, "max_tokens": 6, "temperature": 0, "logprobs": 3,
                                                 "return_token_ids": True, "ignore_eos": True})
        return a["choices"], a["usage"]["prompt_tokens_details"]["cached_tokens"]

    with Ranks(llmq, tmp_path, 1, model, "--no-enable-prefix-caching") as r:
        alone = [ask(r.server, p)[0] for p in prompts]
    small = ["--kv-cache-memory", llmq.json("serve", model, *args, "--dry-run")["kv_bytes_per_token"] * 8 * 40 // (1 if model == HYBRID else n)]  # states are whole everywhere
    for cached in (False, True, True):  # the first server leaves blocks behind, also where its memory is too small
        with Ranks(llmq, tmp_path, n, model, *args, *small) as r:
            for p, want in zip(prompts, alone):
                got, found = ask(r.server, p)
                assert got == want and (found > 40) == cached, (found, r.server.output())
            assert r.server.stop() == 0, r.server.output()
            assert [p.wait(LIMIT) for p in r.others] == [0] * (n - 1)
            assert "lost" not in r.server.output()


LORA = ROOT / "tests/golden/lora"


def adapted(server):
    """Rows of the model and of both adapters in one batch."""
    def one(job):
        name, prompt, n = job
        return server.post_json("/v1/completions", {"model": name, "prompt": prompt, "max_tokens": n, "temperature": 0, "logprobs": 3,
                                                    "ignore_eos": True})["choices"]
    prompts = ["It was", "The captain of the ship", "a " * 70]
    jobs = [(name, p, 6 + 5 * i) for i, p in enumerate(prompts) for name in (DENSE.name, "plain", "dora")]
    with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(one, jobs))


@pytest.mark.parametrize("scheme", [None, "rtn"])
def test_adapters_give_the_bytes_of_one_process(llmq, tmp_path, scheme):
    model = tmp_path / f"{DENSE.name}.llmq" if scheme else DENSE
    if scheme:
        llmq("quantize", DENSE, "-o", model, "-m", scheme)
    loras = ["--lora", f"plain={LORA / 'plain'}", "--lora", f"dora={LORA / 'dora'}"]
    with Ranks(llmq, tmp_path, 1, model, *loras) as r:
        alone = adapted(r.server)
    assert alone[0] != alone[1] != alone[2] != alone[0]
    for n in (2, 3, 4):
        with Ranks(llmq, tmp_path, n, model, *loras) as r:
            assert adapted(r.server) == alone, n
            assert adapted(r.server) == alone, "and again, with what the cache has by now"
            assert r.server.stop() == 0, r.server.output()
            assert [p.wait(LIMIT) for p in r.others] == [0] * (n - 1)


def test_adapters_come_and_go_while_ranks_serve(llmq, tmp_path):
    folder = tmp_path / "loras"
    shutil.copytree(LORA, folder)
    with Ranks(llmq, tmp_path, 1, DENSE, "--lora", f"plain={LORA / 'plain'}", "--lora", f"dora={LORA / 'dora'}") as r:
        alone = adapted(r.server)
    with Ranks(llmq, tmp_path, 2, DENSE, "--lora-dir", folder) as r:
        def call(what, name, **more):
            answer = r.server.post(f"/v1/{what}_lora_adapter", {"lora_name": name, **more})
            assert answer.status == 200, answer.read()
        for _ in range(3):
            for name in ("plain", "dora"):
                call("load", name, lora_path=name)
            shutil.rmtree(folder / "dora")  # rank 0 has read it
            assert adapted(r.server) == alone
            shutil.copytree(LORA / "dora", folder / "dora")
            for name in ("plain", "dora"):
                call("unload", name)
            assert r.server.post("/v1/completions", {"model": "plain", "prompt": "a"}).status == 404
        assert r.server.stop() == 0, r.server.output()
        assert r.others[0].wait(LIMIT) == 0


def test_other_commands_give_the_bytes_of_one_process(llmq, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text((ROOT / "tests/golden/text/novels-heldout-100w.txt").read_text()[:2000])
    lines = tmp_path / "requests.jsonl"
    lines.write_text("".join(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": {
        "model": DENSE.name, "prompt": "It was", "max_tokens": 8, "seed": i, "logprobs": 1}}) + "\n" for i in range(3)))

    def run(n, *args):
        env = [{"LLMQ_RANK": str(i), "LLMQ_RANKS": str(n), "LLMQ_RANK_SOCKETS": f"{tmp_path}/s"} if n > 1 else {} for i in range(n)]
        ps = [llmq.start(*args, "--threads", 1, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **e}) for e in env]
        out = [p.communicate(timeout=LIMIT) for p in ps]
        assert [p.returncode for p in ps] == [0] * n, out
        assert all(o == "" for o, _ in out[1:])
        return out[0][0]

    def all_of(n):
        run(n, "logits", DENSE, "--ids", "1,5,9,60,61", "-o", tmp_path / f"{n}.safetensors")
        run(n, "batch", DENSE, lines, tmp_path / f"{n}.jsonl")
        batch = [json.loads(x)["response"]["body"]["choices"] for x in (tmp_path / f"{n}.jsonl").read_text().splitlines()]
        run(n, "logits", DENSE, "--ids", "1,5,9,60,61", "--lora", LORA / "dora", "-o", tmp_path / f"lora{n}")
        ev = json.loads(run(n, "eval", DENSE, "--text", text, "--ctx", "64,48", "--lora", LORA / "plain", "--json"))
        return [run(n, "run", DENSE, "It was", "-n", 12, "--temperature", 0.9, "--seed", 3),
                (tmp_path / f"{n}.safetensors").read_bytes(), (tmp_path / f"lora{n}").read_bytes(), batch,
                [x["perplexity"] for x in ev["by_ctx"]]]

    assert all_of(2) == all_of(1)


def test_a_rank_that_is_killed_ends_requests_with_an_error_and_then_the_server(llmq, tmp_path):
    with Ranks(llmq, tmp_path, 3, DENSE) as r:
        stream = r.server.post("/v1/completions", {"model": DENSE.name, "prompt": "It was", "max_tokens": 900,
                                                   "ignore_eos": True, "stream": True})
        assert stream.readline().startswith(b"data: ")
        r.others[0].kill()
        rest = stream.read().decode()
        assert "rank 1 of 3 is gone" in rest or rest.count("data: ") > 800, rest[-500:]
        assert r.server.process.wait(LIMIT) == 1, r.server.output()
        assert "llmq: serve: rank 1 of 3 is gone" in r.server.output()
        assert r.others[1].wait(LIMIT) != 0


def test_a_rank_that_is_killed_is_noticed_while_nothing_runs(llmq, tmp_path):
    with Ranks(llmq, tmp_path, 2, DENSE) as r:
        r.others[0].kill()
        until(lambda: r.server.get("/ready").status == 503, r.server.output)
        said = json.load(r.server.get("/ready"))
        assert said["status"] == "lost" and "rank 1 of 2 is gone" in said["reason"]
        assert r.server.post("/v1/completions", {"model": DENSE.name, "prompt": "It was"}).status >= 500
        assert r.server.process.wait(LIMIT) == 1, r.server.output()
        assert "rank 1 of 2 is gone" in r.server.output()


def test_a_signal_to_all_lets_running_requests_finish(llmq, tmp_path):
    with Ranks(llmq, tmp_path, 2, DENSE) as r:
        stream = r.server.post("/v1/completions", {"model": DENSE.name, "prompt": "It was", "max_tokens": 300,
                                                   "ignore_eos": True, "stream": True})
        assert stream.readline().startswith(b"data: ")
        for p in r.others:
            p.send_signal(signal.SIGTERM)
        r.server.process.send_signal(signal.SIGTERM)
        assert stream.read().decode().rstrip().endswith("data: [DONE]")
        assert r.server.process.wait(LIMIT) == 0 and r.others[0].wait(LIMIT) == 0


@pytest.mark.parametrize("option", [["--device", "cuda"], ["--gpu-layers", "1"],
                                    ["--speculative-model", DENSE]],
                         ids=lambda o: o[0])
def test_options_that_ranks_cannot_have_are_refused_by_name(llmq, tmp_path, option):
    env = {**os.environ, "LLMQ_RANKS": "2", "LLMQ_RANK_SOCKETS": f"{tmp_path}/r"}
    ps = [llmq.start("serve", DENSE, "--port", 0, *option, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                     env={**env, "LLMQ_RANK": str(i)}) for i in range(2)]
    said = [p.communicate(timeout=LIMIT) for p in ps]
    assert all(p.returncode for p in ps) and option[0] in said[0][1], said


def test_a_dry_run_says_what_each_rank_takes(llmq, tmp_path):
    one = llmq.json("serve", DENSE, "--dry-run")
    env = {**os.environ, "LLMQ_RANKS": "2", "LLMQ_RANK_SOCKETS": f"{tmp_path}/r"}
    ps = [llmq.start("serve", DENSE, "--dry-run", "--json", stdout=subprocess.PIPE, env={**env, "LLMQ_RANK": str(i)})
          for i in range(2)]
    said = [p.communicate(timeout=LIMIT)[0] for p in ps]
    assert [p.returncode for p in ps] == [0, 0] and said[1] == ""
    two = json.loads(said[0])
    assert two["ranks"] == 2 and two["weights_bytes"] < one["weights_bytes"]
    assert two["kv_bytes_per_token"] == one["kv_bytes_per_token"] / 2


class Launched(Llmq):
    """llmq, started as two ranks by an mpirun."""

    def __init__(self, launcher, path):
        super().__init__(path)
        self.launcher = launcher

    def start(self, *args, env=None, **more):
        return subprocess.Popen([self.launcher, "-n", "2", self.path, *map(str, args)], cwd=ROOT, text=True,
                                env={**(env or os.environ), **MPI}, **more)


def own_ranks(server):
    """Process ids of the ranks below a launcher, by their parents."""
    found, todo = [], [server.process.pid]
    while todo:
        pid = todo.pop()
        for task in os.listdir(f"/proc/{pid}/task"):
            kids = open(f"/proc/{pid}/task/{task}/children").read().split()
            todo += kids
            found += [int(k) for k in kids if os.readlink(f"/proc/{k}/exe").endswith("/llmq")]
    return sorted(found)


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("how", ["launcher", "rank 0", "killed"])
def test_mpi_serves_the_bytes_of_one_process_and_ends_in_order(llmq, tmp_path, alone, launcher, how):
    s = Server(Launched(launcher, llmq.path), DENSE, "--threads", 1, log=tmp_path / "log")
    try:
        s.wait_ready()
        assert answers(s, DENSE) == alone[DENSE]
        until(lambda: "given up: " in s.output(), s.output)
        ranks = own_ranks(s)
        assert len(ranks) == 2, s.output()
        listening = [p for p in ranks if any(os.path.realpath(f"/proc/{p}/fd/{f}") in sockets_on(s.port)
                                             for f in os.listdir(f"/proc/{p}/fd"))]
        assert len(listening) == 1, "rank 0 alone has the port"
        if how == "launcher":
            s.process.send_signal(signal.SIGTERM)
        elif how == "rank 0":
            os.kill(listening[0], signal.SIGTERM)
        else:
            os.kill(next(p for p in ranks if p not in listening), signal.SIGKILL)
        code = s.process.wait(LIMIT)
        assert code == 0 if how == "rank 0" else code != 0 or how == "launcher", s.output()
        assert "rank 1 of 2 is gone" in s.output() or "illed" in s.output() if how == "killed" else \
            "draining" in s.output()
    finally:
        s.process.kill()
        s.process.wait()


def sockets_on(port):
    """What /proc/PID/fd shows of sockets that listen on a port."""
    lines = [x.split() for f in ("tcp", "tcp6") if os.path.exists(f"/proc/net/{f}") for x in open(f"/proc/net/{f}")]
    inodes = [x[9] for x in lines[1:] if x[3] == "0A" and int(x[1].split(":")[1], 16) == port]
    return {f"/proc/{p}/fd/socket:[{i}]" for i in inodes for p in os.listdir("/proc") if p.isdigit()}
