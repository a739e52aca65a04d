"""--device on a machine with one GPU: llmq with the CUDA kernels compiled for the host in its place."""
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness import ROOT, Llmq, Server
from test_bad_input import read_st
from test_published import write_st

ARCH = ROOT / "tests/golden/arch"
IDS = "3,1,4,1,5,9,2,6,5,3,5,8"


@pytest.fixture(scope="module")
def gpu():
    tool = Llmq(ROOT / "build/tests/llmq-emulated")
    if not os.access(tool.path, os.X_OK):
        pytest.skip("build/tests/llmq-emulated is not there: no C++ compiler")
    return tool


@pytest.fixture(scope="module")
def dense(llmq, tmp_path_factory):
    out = tmp_path_factory.mktemp("dense") / "u4.llmq"
    llmq("quantize", ARCH / "llama-128", "-o", out, "--method", "rtn", "--group-size", "32")
    return out


def logits(tool, model, out, *args, **more):
    """All logits as floats, and what was said."""
    p = tool("logits", model, "--ids", IDS, "-o", out, *args, **more)
    data = out.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    begin, end = json.loads(data[8:8 + n])["logits"]["data_offsets"]
    body = data[8 + n + begin:8 + n + end]
    return struct.unpack(f"<{len(body) // 4}f", body), p.stderr


@pytest.mark.parametrize("cc, says", [("90", "cpu, cuda:0 emulated (9.0, code for 9.0)"), ("86", "cpu, cuda:0 emulated (8.6, code for 8.6)"),
                                      ("120", "cpu, cuda:0 emulated (12.0, PTX of 9.0 that its driver compiles at the first start)")])
def test_version_names_it_and_what_it_runs(gpu, cc, says):
    env = {**os.environ, "LLMQ_EMULATED_CC": cc}
    assert gpu.json("version", env=env)["devices"] == says
    assert re.search(rf"^devices +{re.escape(says)}$", gpu("version", env=env).stdout, re.M)
    assert gpu.json("doctor", "--quick", env=env)["devices"] == says


@pytest.mark.parametrize("word", ["cuda", "cuda:0", "auto"])
def test_a_packed_model_gives_the_cpus_logits_within_rounding(gpu, llmq, dense, tmp_path, word):
    want, _ = logits(llmq, dense, tmp_path / "cpu", "--device", "cpu")
    got, said = logits(gpu, dense, tmp_path / "gpu", "--device", word)
    top = max(map(abs, want))
    assert 0 < max(abs(a - b) for a, b in zip(want, got)) <= 5e-6 * top
    assert ("device: emulated" in said) == (word == "auto"), said


def test_streams_come_over_where_the_first_layers_are_the_cpus(gpu, llmq, tmp_path):
    """Gemma 3n whose layers all have K and V of their own, so that any number of them may be on the GPU."""
    model = tmp_path / "apart"
    shutil.copytree(ARCH / "gemma3n", model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "num_kv_shared_layers": 0}))
    header, data = read_st(model / "model.safetensors")
    tensors = {k: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for k, t in header.items() if k != "__metadata__"}
    for name in ("k_proj.weight", "v_proj.weight", "k_norm.weight"):
        for layer in (2, 3):
            tensors[f"model.layers.{layer}.self_attn.{name}"] = tensors[f"model.layers.{layer - 2}.self_attn.{name}"]
    write_st(model / "model.safetensors", tensors)
    want, _ = logits(llmq, model, tmp_path / "cpu")
    for layers in (1, 3, 4):
        got, _ = logits(gpu, model, tmp_path / "gpu", "--device", "cuda", "--gpu-layers", layers)
        assert 0 < max(abs(a - b) for a, b in zip(want, got)) <= 5e-6 * max(map(abs, want)), layers


@pytest.mark.parametrize("arch, layers", [("longcat-flash", 1), ("longcat-flash", 2), ("minimax", 1), ("smallthinker", 2), ("arctic", 1),
                                          ("glm5-next", 2)])
def test_layers_after_the_cpus_go_on_from_what_those_left(gpu, llmq, tmp_path, arch, layers):
    """Of LongCat also between experts and the layer whose end they join."""
    exact = ["--activations", "f32"]
    want, _ = logits(llmq, ARCH / arch, tmp_path / "cpu", *exact)
    got, _ = logits(gpu, ARCH / arch, tmp_path / "gpu", "--device", "cuda", "--gpu-layers", layers, *exact)
    assert 0 < max(abs(a - b) for a, b in zip(want, got)) <= 5e-6 * max(map(abs, want))


@pytest.mark.parametrize("arch", ["minimax", "smallthinker", "arctic", "longcat-flash", "glm5-next"])
def test_steps_of_graphs_answer_as_without(gpu, arch):
    args = ["run", ARCH / arch, "--ids", IDS, "-n", "5", "--ignore-eos", "--device", "cuda", "--logprobs", "0"]
    got, want = gpu.json(*args), gpu.json(*args, "--enforce-eager")
    assert len(got["ids"]) == 5 and [got["ids"], got["logprobs"]] == [want["ids"], want["logprobs"]]


def test_a_cache_on_disk_outlives_the_server_and_is_the_gpus_own(gpu, llmq, dense, tmp_path):
    args = ["--max-model-len", "64", "--kv-cache-dir", tmp_path / "kv", "--kv-cache-disk", "4M"]

    def ask(tool, *where):
        with Server(tool, dense, *args, *where) as s:
            name = json.load(s.wait_ready().get("/v1/models"))["data"][0]["id"]
            r = s.post_json("/v1/completions", {"model": name, "prompt": list(range(3, 38)), "max_tokens": 2,
                                                "temperature": 0, "ignore_eos": True, "logprobs": 1})
        return r["choices"][0]["logprobs"]["token_logprobs"], r["usage"]["prompt_tokens_details"]["cached_tokens"]

    there = ["--device", "cuda", "--batch-invariant"]
    want, found = ask(gpu, *there)
    assert found == 0
    assert ask(gpu, *there) == (want, 32)
    assert ask(llmq)[1] == 0 and ask(llmq)[1] == 32, "the CPU has its own"


LORA = ROOT / "tests/golden/lora"


def test_an_adapter_gives_the_cpus_logits_within_rounding(gpu, llmq, tmp_path):
    model = [ROOT / "models/novels-1m"]
    adapter = ["--lora", LORA / "dora"]
    want, _ = logits(llmq, *model, tmp_path / "cpu", *adapter)
    got, _ = logits(gpu, *model, tmp_path / "gpu", "--device", "cuda", *adapter)
    without, _ = logits(gpu, *model, tmp_path / "none", "--device", "cuda")
    top = max(map(abs, want))
    assert 0 < max(abs(a - b) for a, b in zip(want, got)) <= 5e-6 * top
    assert max(abs(a - b) for a, b in zip(without, got)) > 1e-3 * top


def test_a_server_there_has_adapters_that_come_while_others_run(gpu, tmp_path):
    args = ["--served-model-name", "base", "--device", "cuda", "--lora", f"plain={LORA / 'plain'}", "--lora-dir", LORA,
            "--max-model-len", "128", "--max-lora-rank", "8", "--batch-invariant"]
    need = [gpu.json("serve", ROOT / "models/novels-1m", *more, "--dry-run") for more in (args, args[:4])]
    assert need[0]["gpu_adapters_bytes"] == (LORA / "plain/adapter_model.safetensors").stat().st_size
    assert need[1]["gpu_adapters_bytes"] == 0 and need[0]["gpu_step_bytes"] > need[1]["gpu_step_bytes"]

    def ask(name, n=4):
        r = s.post("/v1/completions", {"model": name, "prompt": "It was", "max_tokens": n, "temperature": 0, "logprobs": 2,
                                       "ignore_eos": True})
        assert r.status == 200, r.read()
        return json.load(r)["choices"]

    with Server(gpu, ROOT / "models/novels-1m", *args, log=tmp_path / "log") as s:
        s.wait_ready()
        alone = [ask(name) for name in ("base", "plain")]
        assert alone[0] != alone[1]
        with ThreadPoolExecutor(3) as pool:
            going = pool.submit(ask, "plain", 60)
            r = s.post("/v1/load_lora_adapter", {"lora_name": "late", "lora_path": "dora"})
            assert r.status == 200, r.read()
            assert not going.done(), "it was loaded beside a request"
            late, *again = pool.map(ask, ("late", "base", "plain"))
            assert again == alone and late not in alone
            assert s.post("/v1/unload_lora_adapter", {"lora_name": "plain"}).status == 200
            assert len(going.result()[0]["logprobs"]["tokens"]) == 60
        assert ask("late") == late


def test_int8_is_asked_for(gpu, llmq, dense, tmp_path):
    int8 = ["--activations", "int8"]
    want = logits(llmq, dense, tmp_path / "cpu", *int8)[0]
    got = logits(gpu, dense, tmp_path / "gpu", "--device", "cuda", *int8)[0]
    top, f32 = max(map(abs, want)), logits(llmq, dense, tmp_path / "f32")[0]
    apart = max(abs(a - b) for a, b in zip(want, f32))
    assert 0 < max(abs(a - b) for a, b in zip(want, got)) <= apart < 0.05 * top
    assert got != logits(gpu, dense, tmp_path / "auto", "--device", "cuda", "--activations", "auto")[0]
    for asked, runs in (("int8", "int8"), ("auto", "bf16")):
        doc = gpu.json("bench", "model", dense, "--device", "cuda", "--activations", asked, "--batch", 1, "--prompt", 4,
                       "--context", 4, "--steps", 1)
        assert doc["activations"] == runs


def test_on_the_cpu_it_gives_the_cpus_bytes(gpu, llmq, dense, tmp_path):
    assert logits(gpu, dense, tmp_path / "a", "--device", "cpu")[0] == logits(llmq, dense, tmp_path / "b")[0]


@pytest.mark.parametrize("arch, what", [("zamba2", "transformers beside the residual"), ("deepseek-v4", "attention to compressed positions")])
def test_what_is_not_there_is_refused_by_name_and_left_to_the_cpu(gpu, llmq, tmp_path, arch, what):
    p = gpu("logits", ARCH / arch, "--ids", IDS, "-o", tmp_path / "no", "--device", "cuda", code=3)
    assert re.fullmatch(r"llmq: logits: [^\n]*not on cuda yet: [^\n]+\n", p.stderr) and what in p.stderr
    assert not (tmp_path / "no").exists()
    got, said = logits(gpu, ARCH / arch, tmp_path / "gpu", "--device", "auto")
    assert got == logits(llmq, ARCH / arch, tmp_path / "cpu")[0]
    assert re.search(r"^device: cpu \(not on cuda yet: .*" + re.escape(what), said, re.M), said


def test_other_words_are_refused(gpu, dense, tmp_path):
    model = ["logits", dense, "--ids", IDS, "-o", tmp_path / "no", "--device"]
    for word, code, says in [("cuda:1", 1, "cuda:1: expected the 1 GPU that is here, cuda:0"), ("cuda:x", 2, "cuda:NUMBER"), ("tpu", 2, "tpu")]:
        assert says in gpu(*model, word, code=code).stderr
    for layers in ("2", "all"):
        assert "--gpu-layers: expected --device cuda or auto, found cpu" in gpu(*model, "cpu", "--gpu-layers", layers, code=2).stderr
    assert "--gpu-layers" in gpu(*model, "cuda", "--gpu-layers", "some", code=2).stderr
    for command in [["bench", "kernels", "--fusion", "on"], ["bench", "attention"]]:
        assert "not on cuda yet" in gpu(*command, "--device", "cuda", code=3).stderr


def test_a_model_that_does_not_fit_says_so(gpu, llmq, dense, tmp_path):  # T-21
    small = dict(os.environ, LLMQ_EMULATED_MEMORY="20000")
    p = gpu("logits", dense, "--ids", IDS, "-o", tmp_path / "no", "--device", "cuda", code=1, env=small)
    assert re.search(r"the weights need \d+ bytes, found \d+ free", p.stderr), p.stderr
    got, said = logits(gpu, dense, tmp_path / "gpu", "--device", "auto", env=small)
    assert got == logits(llmq, dense, tmp_path / "cpu")[0]
    assert "device: cpu (emulated: the weights need" in said


NOVELS = ROOT / "models/novels-6m"
PLAN = ["--bandwidth", "10", "--gflops", "10"]


def emulated(size):
    return dict(os.environ, LLMQ_EMULATED_MEMORY=str(size))


@pytest.fixture(scope="module")
def half(gpu):
    """Memory of a GPU that has room for a part of the layers, and what the plan says of it."""
    whole = gpu.json("plan", NOVELS, "--gpu-memory", "1G", *PLAN)
    assert whole["gpu_layers"] == whole["layers"] == 6 and whole["fits"]
    assert whole["gpu_weights_bytes"] <= whole["weights_bytes"]
    cache = whole["kv_bytes_per_token"] * 1024 * 4 // 3
    size = int(whole["gpu_scratch_bytes"] + 0.6 * (whole["gpu_weights_bytes"] + cache))
    plan = gpu.json("plan", NOVELS, "--gpu-memory", size, *PLAN)
    assert 0 < plan["gpu_layers"] < 6 and plan["gpu_weights_bytes"] < whole["gpu_weights_bytes"]
    assert plan["gpu_kv_bytes_per_token"] * 6 == plan["kv_bytes_per_token"] * plan["gpu_layers"]
    return size, plan["gpu_layers"]


def test_the_plan_knows_the_gpu_here_by_its_name(gpu):
    def plan(name, tool=gpu.json):
        return tool("plan", NOVELS, "--device", "cuda", *PLAN, env=dict(emulated(100_000_000), LLMQ_EMULATED_NAME=name))
    p = plan("NVIDIA H200")
    assert (p["gpu"], p["gpu_bandwidth_bytes_s"], p["gpu_flops"]) == ("NVIDIA H200", 4.8e12, 989e12)
    assert 99_990_000 < p["gpu_memory_bytes"] <= 100_000_000  # an open device has counters there
    for name in ("emulated", "NVIDIA H200 MIG 1g.18gb", "NVIDIA GeForce RTX 4090 Laptop GPU"):
        p = plan(name)
        assert p["gpu"] == name and p["gpu_layers"] == 6 and "gpu_decode_tok_s_limit" not in p
        assert f"the speed of {name} is not known here: --gpu NAME" in plan(name, gpu).stdout


@pytest.mark.parametrize("args, where", [
    (["--device", "cuda"], "on emulated"), (["--tensor-parallel-size", 2], "on emulated x 2"),
    (["--gpu-layers", 2], "2 of 6 layers on emulated, the others on the CPU with 2 threads")])
def test_the_plan_says_what_a_server_holds_on_a_gpu(gpu, args, where):
    env = {**os.environ, "LLMQ_EMULATED_DEVICES": "2"}
    args = [NOVELS, *args, "--threads", 2]
    text = gpu("plan", *args, *PLAN, env=env).stdout
    assert text.splitlines()[0] == f"LlamaForCausalLM (safetensors, as stored), {where}"
    assert re.search(r"^llmq serve holds there \S+ MiB of weights, \S+ MiB of KV cache and \S+ MiB for a step", text, re.M)
    plan, said = gpu.json("plan", *args, *PLAN, env=env)["serve"], gpu.json("serve", *args, "--dry-run", env=env)
    for key in ("gpu", "gpus", "gpu_layers", "gpu_weights_bytes", "gpu_kv_bytes", "gpu_step_bytes", "weights_bytes", "kv_bytes", "kv_blocks"):
        assert plan[key] == said[key], key


@pytest.mark.parametrize("n", [1, 3])
def test_layers_on_both_give_the_cpus_logits_within_rounding(gpu, llmq, tmp_path, n):
    model = ARCH / "smollm3-window"
    want, _ = logits(llmq, model, tmp_path / "cpu")
    got, _ = logits(gpu, model, tmp_path / "a", "--gpu-layers", n)
    top = max(map(abs, want))
    assert 0 < max(abs(a - b) for a, b in zip(want, got)) <= 5e-6 * top
    assert logits(gpu, model, tmp_path / "b", "--device", "cuda", "--gpu-layers", n, "--threads", 2)[0] == got
    whole, _ = logits(gpu, model, tmp_path / "c", "--device", "cuda")
    assert logits(gpu, model, tmp_path / "d", "--gpu-layers", 99)[0] == whole != got
    for word in ("auto", "all"):
        assert logits(gpu, model, tmp_path / "e", "--gpu-layers", word)[0] == whole
    for device in ([], ["--device", "cuda"], ["--device", "auto"]):
        same, said = logits(gpu, model, tmp_path / "f", "--gpu-layers", 0, *device)
        assert same == want and said.startswith("device: cpu (--gpu-layers 0)\n"), said


def test_how_many_layers_fit_is_said_and_true(gpu, tmp_path, half):
    size, n = half
    model = ["logits", NOVELS, "--ids", "3,1", "-o", tmp_path / "out"]
    p = gpu(*model, "--device", "cuda", code=1, env=emulated(10_000_000))
    fit = re.search(r"the weights need \d+ bytes, found 9\d{6} free; --gpu-layers (\d) would fit\n", p.stderr)
    assert fit, p.stderr
    for layers in (fit[1], "auto"):
        p = gpu(*model, "--gpu-layers", layers, env=emulated(10_000_000))
        assert f"device: emulated, {fit[1]} of 6 layers\n" in p.stderr
    (tmp_path / "out").unlink()
    small = emulated(2_000_000)  # weights alone do not fit, not even those of one layer
    p = gpu(*model, "--device", "cuda", code=1, env=small)
    assert re.search(r"the weights need \d+ bytes, found 19\d{5} free\n", p.stderr), p.stderr
    p = gpu(*model, "--gpu-layers", "auto", code=1, env=small)
    assert re.search(r"one layer and the head need \d+ bytes, beside \d+ for the cache and a step", p.stderr)
    assert not (tmp_path / "out").exists()
    p = gpu(*model, "--gpu-layers", "auto", "--device", "auto", env=small)
    assert re.search(r"^device: cpu \(emulated: one layer and the head need", p.stderr, re.M)
    assert re.search("^device: emulated$", gpu(*model, "--gpu-layers", "auto", env=emulated(size)).stderr, re.M)


def test_auto_is_the_cpu_where_weights_fit_and_a_step_does_not(gpu, tmp_path):
    run = ["run", ROOT / "tests/golden/arch/llama-128", "--ids", "1,2,3", "-n", 4, "--ignore-eos", "--device"]
    want, seen = gpu(*run, "cpu").stdout, set()
    for size in (700_000, 3_000_000, 10_600_000, 10_641_000, 11_000_000, 40_000_000):
        p = gpu(*run, "auto", env=emulated(size))
        where = re.search(r"^device: (cpu|emulated)\b.*$", p.stderr, re.M)
        assert where, p.stderr
        seen.add(where[1] if where[1] != "cpu" else re.search(r"the weights need \d+ bytes, (\w+)", p.stderr)[1])
        assert where[1] != "cpu" or p.stdout == want
        named = gpu(*run, "cuda", code=None, env=emulated(size))  # by name: there, or one error
        assert named.returncode == 0 or (named.returncode == 1 and "--device: emulated: " in named.stderr), named.stderr
        assert where[1] == "cpu" or named.returncode == 0
    assert seen == {"emulated", "found", "the"}, seen


def serve(gpu, log, env, *args):
    """As one of the other commands: started, and ended once it is ready."""
    p = subprocess.Popen([gpu.path, "serve", *map(str, args), "--port", "0"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                         text=True, env=env)
    said = ""
    for line in p.stderr:
        said += line
        if line.startswith("ready"):
            p.terminate()
    return subprocess.CompletedProcess([], p.wait() if "ready: " not in said else 0, "", said)


@pytest.mark.parametrize("command, more, slack", [
    ("logits", [ARCH / "llama-128", "--ids", "1,2,3"], 0),
    ("eval", [ROOT / "models/novels-1m", "--ctx", "8", "--windows", "1"], 0),
    ("run", [ARCH / "llama-128", "--ids", "1,2,3", "-n", "2", "--ignore-eos"], 24_000),  # the cache may have three quarters
    ("serve", [ARCH / "llama-128", "--max-model-len", "64"], 4_000),  # what joined weights do not take
    ("serve", [ARCH / "llama-128", "--max-model-len", "64", "--kv-cache-memory", "100K"], 4_000),
])
def test_auto_takes_all_layers_where_all_fit(gpu, tmp_path, command, more, slack):
    """And where they do not one line says what is needed and what is free, with exit code 1."""
    (tmp_path / "text").write_text("It was the best of times, it was the worst of times.")
    args = more + {"logits": ["-o", tmp_path / "out"], "eval": ["--text", tmp_path / "text"]}.get(command, [])

    def on(size, *layers):
        if command == "serve":
            return serve(gpu, tmp_path / "log", emulated(size), *args, "--device", "cuda", *layers)
        return gpu(command, *args, "--device", "cuda", *layers, code=None, env=emulated(size))
    room = 400_000
    while True:  # of each message what it says is missing
        p = on(room)
        if p.returncode == 0:
            break
        said = [line for line in p.stderr.splitlines() if line.startswith("llmq: ")]
        wants, has = re.split(r", found (?:room (?:of|for) )?", said[0])
        missing = sum(map(int, re.findall(r"\d{3,}", wants))) - int(re.match(r"\d+", has)[0])
        assert p.returncode == 1 and len(said) == 1 and missing > 0, p.stderr
        room += missing
    assert on(room - 1).returncode == 1
    assert re.search(r"^device: emulated$", on(room + slack, "--gpu-layers", "auto").stderr, re.M)
    under = on(room - 1 - slack, "--gpu-layers", "auto")
    assert not re.search(r"^device: emulated$", under.stderr, re.M) and under.returncode in (0, 1)


def test_layers_on_both_are_found_room_for_by_one_sum(gpu, tmp_path):
    """A cache that does not fit beside a step is one error, not a failure in the middle."""
    p = serve(gpu, tmp_path / "log", emulated(12_500_000), ARCH / "llama-128", "--device", "cuda", "--kv-cache-memory", "10M")
    assert p.returncode == 1 and "KV cache: 512 blocks need 4194304 bytes on the device, found room for" in p.stderr, p.stderr


def mapped(pid, path):
    """Bytes of the file's mapping that are in the process's memory."""
    rss, inside = 0, False
    for line in open(f"/proc/{pid}/smaps"):
        if re.match(r"[0-9a-f]+-", line):
            inside = line.rstrip().endswith(str(path))
        elif inside and line.startswith("Rss:"):
            rss += 1024 * int(line.split()[1])
    return rss


def test_a_server_shares_its_layers_and_gives_back_what_is_there(gpu, tmp_path, half, llmq):
    size, n = half
    tiled = tmp_path / "novels.llmq"
    llmq("convert", NOVELS, "-o", tiled, "--to", "llmq", "--layout", "tile16")
    body = {"prompt": [3, 1, 4, 1, 5], "max_tokens": 2, "temperature": 0, "ignore_eos": True}
    held, texts = {}, {}
    for where in (["cpu"], ["cuda", "--gpu-layers", "auto"], ["cuda"]):
        env = emulated(size) if where[1:] else None
        with Server(gpu, tiled, "--device", *where, "--max-num-batched-tokens", 512, "--activations", "f32",
                    "--kv-cache-dtype", "f16", log=tmp_path / "log", env=env) as s:
            name = json.load(s.get("/v1/models"))["data"][0]["id"]
            texts[len(where), where[0]] = s.post_json("/v1/completions", dict(body, model=name))["choices"][0]["text"]
            held[len(where), where[0]] = mapped(s.process.pid, tiled)
        if where[1:]:
            assert f"device emulated, {n} of 6 layers, after" in (tmp_path / "log").read_text()
    cpu, shared, whole = held[1, "cpu"], held[3, "cuda"], held[1, "cuda"]
    assert len(set(texts.values())) == 1 and cpu > 0.8 * tiled.stat().st_size
    assert whole < 0.2 * cpu and shared < (1 - 0.8 * n / 6) * cpu, (cpu, shared, whole)


def test_a_draft_has_what_is_left_there_or_runs_on_the_cpu(gpu, tmp_path, half):
    size, n = half
    run = ["batch", NOVELS, tmp_path / "in", tmp_path / "out", "--speculative-model", ROOT / "models/novels-1m"]
    (tmp_path / "in").write_text(json.dumps({
        "custom_id": "a", "method": "POST", "url": "/v1/completions",
        "body": {"model": "novels-6m", "prompt": [3, 1, 4], "max_tokens": 2, "temperature": 0}}) + "\n")
    p = gpu(*run, "--gpu-layers", "auto", "--log-level", "info", env=emulated(size))
    assert "the draft runs on the CPU: " in p.stderr, p.stderr
    assert json.loads((tmp_path / "out").read_text())["response"]["status_code"] == 200
    p = gpu(*run, "--device", "cuda", "--no-resume", code=1, env=emulated(20_000_000))
    assert re.search(r"emulated: a step needs \d+ bytes and a block of the KV cache \d+, found \d+ free; "
                     r"--gpu-layers auto leaves room", p.stderr), p.stderr


@pytest.mark.parametrize("arch", ["deepseek-v2-mla", "falcon-mha-parallel", "gemma2", "gemma4-ple", "gemma3n", "mimo-v2-flash", "minimax", "smallthinker", "arctic",
                                  "longcat-flash", "glm5-next"])
def test_a_prompts_last_row_is_all_that_is_answered_from(gpu, llmq, arch):
    args = ["run", ARCH / arch, "--ids", IDS, "-n", "3", "--ignore-eos", "--logprobs", "0", "--activations", "f32",
            "--kv-cache-dtype", "f32"]
    want, got = llmq.json(*args), gpu.json(*args, "--device", "cuda")
    assert got["ids"] == want["ids"]
    assert all(abs(a["logprob"] - b["logprob"]) < 1e-4 for a, b in zip(want["logprobs"], got["logprobs"]))


def test_run_and_serve_work_there(gpu, llmq, tmp_path):
    model, exact = ARCH / "arcee", ["--activations", "f32", "--kv-cache-dtype", "f32"]
    want = llmq.json("run", model, "--ids", IDS, "-n", "3", "--ignore-eos", *exact)
    got = gpu.json("run", model, "--ids", IDS, "-n", "3", "--ignore-eos", "--device", "cuda", *exact)
    assert got["ids"] == want["ids"] and len(got["ids"]) == 3
    with Server(gpu, model, "--device", "cuda", "--max-num-seqs", "2", *exact, log=tmp_path / "log") as s:
        name = json.load(s.get("/v1/models"))["data"][0]["id"]
        r = s.post_json("/v1/completions", {"model": name, "prompt": [3, 1, 4, 1, 5], "max_tokens": 3,
                                            "temperature": 0, "ignore_eos": True})
        assert r["usage"]["completion_tokens"] == 3
    assert re.search(r"^ready: .*, device emulated, after [0-9.]+ s$", (tmp_path / "log").read_text(), re.M)


HEADS = ROOT / "tests/golden/heads"
ENCODERS = ["bert", "embeddinggemma", "gte", "jina-bert", "modernbert", "nomic-bert", "nomic-moe", "albert", "mpnet", "qwen3-model", "cross-modernbert",
            "class-roberta"]
MORE_ENCODERS = ["cross-mpnet", "distilbert", "electra", "eurobert", "gte-ntk", "llama-both-ways", "xlm-roberta-xl", "cross-bert", "cross-xlm-roberta",
                 "qwen3-labels"]


def vectors(tool, log, model, *args, env=None):
    """What a server says of texts alone and of several together: embeddings, or scores of a cross-encoder."""
    with Server(tool, HEADS / model, "--max-model-len", 40, *args, log=log, env=env) as s:
        name = json.load(s.get("/v1/models"))["data"][0]["id"]
        if model.startswith("cross"):
            body = {"query": "a b", "documents": ["c d e f g h", "b", "the c"]}
            return [[r["relevance_score"]] for r in sorted(s.post_json("/rerank", {"model": name, **body})["results"], key=lambda r: r["index"])]
        if model.startswith("class"):
            return [d["probs"] for d in s.post_json("/classify", {"model": name, "input": ["hello there", "a"]})["data"]]
        texts = [[3, 4, 5, 6, 7], [8] * 20, list(range(5, 41)), [9]]
        together = s.post_json("/v1/embeddings", {"model": name, "input": texts})["data"]
        alone = s.post_json("/v1/embeddings", {"model": name, "input": texts[2]})["data"]
        return [d["embedding"] for d in together + alone]


@pytest.mark.parametrize("model", ENCODERS + MORE_ENCODERS)
def test_vectors_and_scores_there_are_the_cpus(gpu, tmp_path, model):
    """Tokens see both ways there, exactly under f32 and through the matrix units under bf16; no head's product is made."""
    if model in MORE_ENCODERS and not os.environ.get("LLMQ_HARD"):
        pytest.skip("check-hard has it")
    for acts, cache, apart in (("f32", "f32", 1e-5), ("bf16", "bf16", 0.02)):
        exact = ["--activations", acts, "--kv-cache-dtype", cache]
        here, there = (vectors(gpu, tmp_path / "log", model, *exact, "--device", where) for where in ("cpu", "cuda"))
        assert len(here) == len(there) > 1
        for a, b in zip(here, there):
            assert len(a) == len(b) and max(abs(x - y) for x, y in zip(a, b)) < apart


@pytest.mark.parametrize("args", [["--gpu-layers", 1], ["--device", "cuda", "--tensor-parallel-size", 2], ["--device", "cuda", "--enforce-eager"]])
def test_vectors_of_a_part_there_are_the_cpus(gpu, tmp_path, args):
    exact = ["--activations", "f32", "--kv-cache-dtype", "f32"]
    for model in ("bert", "embeddinggemma", "mpnet"):
        here, there = (vectors(gpu, tmp_path / "log", model, *exact, *where, env=devices(2)) for where in (["--device", "cpu"], args))
        for a, b in zip(here, there):
            assert max(abs(x - y) for x, y in zip(a, b)) < 1e-5


def test_encoders_that_are_not_there_are_said(gpu):
    p = gpu("serve", HEADS / "deberta-v2", "--port", 0, "--device", "cuda", code=3)
    assert "not on cuda yet: scores with an addend of each distance" in p.stderr


def test_graphs_change_no_answer_and_are_left_out_where_asked_or_where_they_fail(gpu, tmp_path):
    """Drawn ids and their logprobs; a capture that fails is one line."""
    args = ["run", ARCH / "mixtral-moe", "--ids", IDS, "-n", "8", "--ignore-eos", "--device", "cuda", "--temperature",
            "1", "--seed", "7", "--json"]
    none = dict(os.environ, LLMQ_EMULATED_GRAPHS="0")
    runs = [gpu(*args), gpu(*args, "--enforce-eager"), gpu(*args, env=none), gpu(*args, "--enforce-eager", env=none)]
    ids = [json.loads(p.stdout)["ids"] for p in runs]
    assert len(ids[0]) == 8 and all(i == ids[0] for i in ids)
    notes = [re.findall("^CUDA graphs: .*$", p.stderr, re.M) for p in runs]
    assert notes == [[], [], ["CUDA graphs: off, each operation is launched by itself (emulated: cudaGraphInstantiate: "
                              "out of memory)"], []]


def test_batch_invariant_is_taken_everywhere_and_means_something_on_a_gpu(gpu, dense, tmp_path):
    """That a batch then changes no byte is in test_forward_dev.c; here: the option gets there."""
    args = ["--activations", "bf16", "--ids", "3,1,4,1,5"]
    plain, _ = logits(gpu, dense, tmp_path / "plain", "--device", "cuda", *args)
    order, _ = logits(gpu, dense, tmp_path / "order", "--device", "cuda", "--batch-invariant", *args)
    again, _ = logits(gpu, dense, tmp_path / "again", "--device", "cuda", "--batch-invariant", *args)
    top = max(map(abs, plain))
    assert order == again and order != plain and max(abs(a - b) for a, b in zip(plain, order)) < 0.05 * top
    cpu, _ = logits(gpu, dense, tmp_path / "cpu")
    same, _ = logits(gpu, dense, tmp_path / "same", "--batch-invariant")
    assert cpu == same


def planes(path):
    """The checksums of all tensors' parts."""
    data = path.read_bytes()
    at, n = struct.unpack("<QQ", data[16:32])
    return {t["name"]: {k: p["xxh3"] for k, p in t["planes"].items()} for t in json.loads(data[at:at + n])["tensors"]}


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_on_a_gpu_methods_give_what_they_give_on_the_cpu(gpu, tmp_path, method):
    """Fewer tokens than inputs, so that a last bit anywhere would move codes; and the record, and what is refused."""
    ids = tmp_path / "t.ids"
    ids.write_text(" ".join(str(i * 37 % 61) for i in range(200)))
    args = ["quantize", ARCH / "llama3-gqa", "--method", method, "--group-size", "16", "--calib", ids,
            "--calib-samples", "4", "--calib-len", "16", "--no-check", "--json"]
    order = dict(os.environ, OPENBLAS_CORETYPE="Haswell")  # sums go in order there too
    cpu = json.loads(gpu(*args, "-o", tmp_path / "cpu.llmq", env=order).stdout)
    there = json.loads(gpu(*args, "-o", tmp_path / "gpu.llmq", "--device", "cuda", env=order).stdout)
    assert planes(tmp_path / "cpu.llmq") == planes(tmp_path / "gpu.llmq")
    assert json.loads(gpu("inspect", tmp_path / "gpu.llmq", "--json").stdout)["recipe"]["device"] == "cuda"
    assert len(cpu["tensors"]) == len(there["tensors"]) > 4
    for a, b in zip(cpu["tensors"], there["tensors"]):
        assert a["name"] == b["name"] and (a["loss"] is None) == (b["loss"] is None)  # None: of an embedding
        assert a["loss"] is None or a["loss"] == pytest.approx(b["loss"], rel=1e-6)
    for more, code, said in [(["--reproducible", "--device", "cuda"], 2, "--reproducible: expected --device cpu"),
                             (["--method", "rtn", "--device", "cuda"], 2, "--device: expected a method that has it"),
                             (["--device", "tpu"], 2, "--device: ")]:
        p = gpu(*args, "-o", tmp_path / "no.llmq", *more, code=code)
        assert said in p.stderr and not (tmp_path / "no.llmq").exists()
    for env, said in [({"LLMQ_EMULATED_MEMORY": "20000"}, "out of memory"), ({"LLMQ_EMULATED_LAUNCHES": "3"}, "is lost")]:
        p = gpu(*args, "-o", tmp_path / "no.llmq", "--device", "cuda", env=dict(os.environ, **env), code=1)
        assert said in p.stderr and not (tmp_path / "no.llmq").exists()


def test_auto_is_trained_on_a_gpu(gpu, tmp_path):
    """Gradients and training there: the same bytes with other threads; and what fails is said. Of so little text the last
    bits of sums move codes, so errors are only about the CPU's (gradients: tests/unit/test_backward_dev.c)."""
    ids = tmp_path / "t.ids"
    ids.write_text(" ".join(str(i * 37 % 61) for i in range(600)))
    args = ["quantize", ARCH / "llama3-gqa", "--method", "auto", "--group-size", "16", "--calib", ids,
            "--calib-samples", "12", "--calib-len", "16", "--tune", "2", "--json"]

    def made(name, *more):
        result = json.loads(gpu(*args, "-o", tmp_path / name, *more).stdout)
        return result, json.loads(gpu("inspect", tmp_path / name, "--json").stdout)["recipe"]

    cpu, recipe = made("cpu.llmq")
    there, there_recipe = made("gpu.llmq", "--device", "cuda", "--threads", "1")
    if os.environ.get("LLMQ_HARD"):
        made("again.llmq", "--device", "cuda", "--threads", "3")
        assert planes(tmp_path / "gpu.llmq") == planes(tmp_path / "again.llmq")
    assert there_recipe == {**recipe, "device": "cuda"} and there_recipe["tune"] == 2
    for key in ("kl_held_back_before", "kl_held_back_after"):
        assert there[key] == pytest.approx(cpu[key], rel=0.1)
    assert there["check"]["kl_mean"] == pytest.approx(cpu["check"]["kl_mean"], rel=0.1)
    p = gpu(*args, "-o", tmp_path / "no.llmq", "--device", "cuda", env=dict(os.environ, LLMQ_EMULATED_MEMORY="20000"), code=1)
    assert "out of memory" in p.stderr and not (tmp_path / "no.llmq").exists()


def test_bench_of_kernels_on_a_gpu_and_the_page_that_is_made_of_it(gpu, tmp_path):
    """An emulated GPU's speed is no figure; every scheme and cache has its row."""
    rows = gpu.json("bench", "kernels", "--device", "cuda")["rows"]
    names = {r["name"] for r in rows}
    assert {"u4-g128 bf16", "nf4 bf16", "fp8-e4m3 bf16", "prefill bf16", "decode int4"} <= names
    assert all(r["seconds"] > 0 and r["gbytes_s"] > 0 for r in rows)
    assert [r["times_one_row"] for r in rows if r["shape"].startswith("1x")] == [1] * 10
    assert {"u4-g128 expanded", "decode fp8", "scan delta"} <= names
    page, found = tmp_path / "page.md", tmp_path / "result.json"
    shape = "64x14336x4096"
    row = {"name": "u4-g128 bf16", "shape": shape, "seconds": 1e-5, "gflops": 7.5e5, "gbytes_s": 3000,
           "percent_of_copy": 71, "times_one_row": 1.4}
    kernels = {"device": "a GPU", "compute_capability": 90, "multiprocessors": 132, "limits": {"copy_gbytes_s": 4200},
               "rows": [row, {**row, "shape": "512x14336x4096"}, {**row, "name": "bf16 bf16", "shape": "512x14336x4096", "gflops": 8e5}]}
    whole = gpu.json("bench", "model", "--device", "cuda", "--shape", "tiny", "--batch", "1", "--prompt", "16", "--steps", "2")
    assert [(r["name"], r["shape"]) for r in whole["rows"]] == [("prefill", "1 x 16"), ("decode", "1 x 1")]
    whole["model"] = "Llama-3.1-8B's shape"  # the names of its rows are what the page looks for
    whole["rows"][1].update(percent_of_limit=71, decode_tok_s=900)
    found.write_text(json.dumps({"date": "2026-01-02", "kernels": kernels, "model": whole, "gptq": {"seconds": 61}, "steps": [
        {"step": "test_dev this", "result": "FAILED", "seconds": 1, "says": "why"}, {"step": "kernels", "result": "ok", "seconds": 9, "says": ""}]}))
    make = [sys.executable, "scripts/bench/gpu_page.py"]
    subprocess.run([*make, found, page], cwd=ROOT, check=True)
    text = page.read_text()
    assert "| 64 rows, times the time of one | 1.5 | 1.40 | yes |" in text and "2026-01-02, a GPU (compute capability 9.0" in text
    assert "| 16 rows, times the time of one | 1.10 | not measured |  |" in text
    assert "| 512 rows, of bf16 by cuBLAS | 80 % | 93.8 %, 750.0 TFLOP/s | yes |" in text
    assert "bf16 head: one sequence | 70 % of the roofline | 71.0 %, 900 tokens/s | yes |" in text
    assert "1.1 B shape, 128 x 512 | 60 s | 61.0 s | no |" in text
    assert "\nFailed there: test_dev this: why\n1 of 2 steps went well.\n" in text
    subprocess.run([*make, "-", page], cwd=ROOT, check=True)
    text = page.read_text()
    assert "**Compiled and emulated, not measured**" in text and "| 64 rows, times the time of one | 1.5 | not measured |  |" in text


def test_bench_of_kernels_measures_the_rows_that_are_asked_for(gpu):
    rows = gpu.json("bench", "kernels", "--device", "cuda", "--rows", "nf4 bf16 1x;decode int8;u8-g128")["rows"]
    assert [(r["name"], r["shape"].split("x")[0]) for r in rows] == [
        ("u8-g128 bf16", "1"), ("u8-g128 bf16", "9"), ("u8-g128 bf16", "40"), ("nf4 bf16", "1"), ("decode int8", "2 ")]
    for args, said in [(["--device", "cuda", "--rows", "nothing"], "expected how a row's name begins, as u4-g128 or decode, found 'nothing'"),
                       (["--rows", "nf4"], "--rows: expected with bench kernels --device cuda")]:
        assert said in gpu("bench", "kernels", *args, code=2).stderr


def devices(n, **more):
    return dict(os.environ, LLMQ_EMULATED_DEVICES=str(n), **more)


def test_devices_that_share_a_model_give_the_logits_of_one(gpu, dense, tmp_path):
    for model, n in [(dense, 2), (ARCH / "persimmon", 4), (ARCH / "granite-moe", 2)]:
        want, _ = logits(gpu, model, tmp_path / "one", "--device", "cuda")
        got, said = logits(gpu, model, tmp_path / "two", "--tensor-parallel-size", n, env=devices(n))
        assert f"device: emulated x {n}" in said
        top = max(map(abs, want))
        assert 0 < max(abs(a - b) for a, b in zip(want, got)) <= 5e-6 * top
        for word, there in [("cuda:1", n + 1), ("auto", n)]:  # the same bytes on others, and again
            again, said = logits(gpu, model, tmp_path / "again", "--tensor-parallel-size", n, "--device", word,
                                 env=devices(there))
            assert again == got and f"emulated x {n}" in said


def test_a_server_on_several_devices_answers_as_on_one(gpu, tmp_path):
    body = {"prompt": "It was", "max_tokens": 6, "return_token_ids": True, "ignore_eos": True}
    # Sequences that part copy their blocks; a prompt of more than a block is found again.
    bodies = [{"temperature": 0}, {"temperature": 1, "seed": 5, "n": 3}, {"temperature": 0, "logprobs": 3},
              {"temperature": 0, "prompt": [3, 1, 4, 1, 5] * 5}, {"temperature": 0, "prompt": [3, 1, 4, 1, 5] * 5}]
    said = []
    for n in (1, 2):
        with Server(gpu, ROOT / "models/novels-1m", "--device", "cuda", "--tensor-parallel-size", n, "--activations",
                    "f32", "--kv-cache-dtype", "f32", log=tmp_path / "log", env=devices(2)) as s:
            name = json.load(s.get("/v1/models"))["data"][0]["id"]
            said.append([[c["token_ids"] for c in s.post_json("/v1/completions", {"model": name, **body, **b})["choices"]]
                         for b in bodies])
    assert said[0] == said[1] and len({str(c) for c in said[1][1]}) > 1 and said[1][3] == said[1][4]
    assert re.search(r"^ready: .*, device emulated x 2, after", (tmp_path / "log").read_text(), re.M)


@pytest.mark.parametrize("model, args, there, code, says", [
    (None, [3], 3, 3, "heads: expected a multiple of 3 devices, found 4"),
    ("longcat-flash", [2], 2, 3, "not over several devices yet: experts beside an MLP"),
    ("minimax", [2], 2, 3, "not over several devices yet: states of other layers than the delta rule's and Mamba-2's"),
    ("olmo2", [4], 4, 3, "KV heads: expected a multiple of 4 devices, found 2"),  # one norm for all
    (None, [2], 1, 1, "2 devices: cuda:1: expected the 1 GPU that is here, cuda:0"),
    (None, [2, "--device", "cuda:1"], 2, 1, "2 devices: cuda:2: expected one of 2 GPUs, cuda:0 .. cuda:1"),
    (None, [2, "--device", "cpu"], 2, 2, "--tensor-parallel-size: expected --device cuda or auto, found cpu"),
    (None, [2, "--gpu-layers", 1], 2, 2, "--tensor-parallel-size goes without --gpu-layers"),
    (None, [17], 2, 2, "--tensor-parallel-size"),
])
def test_what_devices_cannot_share_is_refused_by_name(gpu, dense, tmp_path, model, args, there, code, says):
    path = ARCH / model if model else dense
    p = gpu("logits", path, "--ids", IDS, "-o", tmp_path / "no", "--tensor-parallel-size", *args, code=code,
            env=devices(there))
    said = p.stderr.split("\nllmq: `")[0].rstrip()
    assert says in said and "\n" not in said and not (tmp_path / "no").exists(), p.stderr


def test_a_group_that_devices_would_cut_is_refused_by_its_name(gpu, llmq, tmp_path):
    llmq("quantize", ARCH / "llama3-gqa", "-o", tmp_path / "u4.llmq", "--method", "rtn", "--group-size", "32")
    run = ["logits", tmp_path / "u4.llmq", "--ids", IDS, "-o", tmp_path / "out", "--tensor-parallel-size", 2]
    p = gpu(*run, code=3, env=devices(2))
    assert "model.layers.0.mlp.down_proj.weight over 2 devices: inputs 0..80 of 160: expected multiples of 32" in p.stderr
    p = gpu(*run, "--device", "auto", env=devices(2))
    assert "device: cpu (model.layers.0.mlp.down_proj.weight over 2 devices" in p.stderr


def test_several_devices_need_nccl(gpu, dense, tmp_path):
    p = gpu("logits", dense, "--ids", IDS, "-o", tmp_path / "no", "--tensor-parallel-size", 2, code=1,
            env=devices(2, LLMQ_EMULATED_NCCL="none"))
    assert "several GPUs need NCCL" in p.stderr


def test_the_plan_of_several_devices(gpu, llmq, tmp_path):
    ask = ["plan", NOVELS, "--gpu-memory", "1G", *PLAN]
    one, two = gpu.json(*ask), gpu.json(*ask, "--tensor-parallel-size", 2)
    assert (one["gpus"], two["gpus"], two["gpu_layers"]) == (1, 2, 6) and two["fits"]
    assert two["gpu_kv_bytes_per_token"] * 2 == one["gpu_kv_bytes_per_token"]
    # All but the norms and the embedding is cut.
    embed = 4096 * 256 * 2
    half = (one["gpu_weights_bytes"] - embed) / 2
    assert half < two["gpu_weights_bytes"] - embed < 1.01 * half, (one, two)
    assert not gpu.json(*ask[:3], 1_000_000, *PLAN, "--tensor-parallel-size", 2)["fits"]
    for more, says in [(["--tensor-parallel-size", 3], "heads: expected a multiple of 3 devices, found 4"),
                       (["--tensor-parallel-size", 2, "--scheme", "u4-g256"],
                        "down over 2 devices: inputs 0..384 of 768: expected multiples of 256, a group")]:
        assert says in gpu(*ask, *more, code=3).stderr


@pytest.mark.parametrize("late", [{}, {"LLMQ_EMULATED_LATE": "1"}])
def test_several_devices_are_lost_together(gpu, tmp_path, late):
    """Late: one of them, without a word, in an exchange that the other waits in."""
    lost = devices(2, LLMQ_EMULATED_LAUNCHES="150", **late)
    with Server(gpu, ARCH / "arcee", "--tensor-parallel-size", 2, log=tmp_path / "log", env=lost) as s:
        name = json.load(s.get("/v1/models"))["data"][0]["id"]
        r = s.post("/v1/completions", {"model": name, "prompt": [3, 1, 4, 1, 5], "max_tokens": 50, "temperature": 0,
                                       "ignore_eos": True})
        assert r.status == 500 and "the device is lost" in json.load(r)["error"]["message"]
        assert s.process.wait() == 1


DRAWS = [{"temperature": 0}, {"temperature": 1.3, "seed": 5}, {"temperature": 0.8, "seed": 6, "top_k": 9, "top_p": 0.9},
         {"temperature": 1, "seed": 7, "min_p": 0.02, "logprobs": 4}, {"temperature": 0, "logprobs": 2},
         {"temperature": 0, "logit_bias": {"7": 30, "9": -100}, "logprobs": 1},
         {"temperature": 0.9, "seed": 8, "repetition_penalty": 1.4, "logit_bias": {"3": 2}, "logprobs": 2},
         {"temperature": 0.9, "seed": 8, "presence_penalty": 1.5, "frequency_penalty": 1},
         {"temperature": 0, "min_tokens": 3, "stop_token_ids": [1, 2, 3, 4, 5, 6, 7, 8]}]


@pytest.mark.parametrize("more", [[], ["--speculative-ngram"]])
def test_tokens_drawn_there_are_those_drawn_here(gpu, llmq, tmp_path, more):
    """A list of all ids changes no token, and keeps the draw on the host."""
    exact = ["--activations", "f32", "--kv-cache-dtype", "f32", *more]
    body = {"prompt": [3, 1, 4, 1, 5, 3, 1, 4, 1, 5, 3, 1], "max_tokens": 5, "ignore_eos": True,
            "return_token_ids": True}
    said = []
    for tool, device in ((gpu, "cuda"), (llmq, "cpu")):
        with Server(tool, ARCH / "arcee", "--device", device, *exact, log=tmp_path / "log") as s:
            name = json.load(s.get("/v1/models"))["data"][0]["id"]
            for ids in ({}, {"allowed_token_ids": list(range(96))}):
                answers = [s.post_json("/v1/completions", {"model": name, **body, **draw, **ids})["choices"][0]
                           for draw in DRAWS]
                said.append(answers)
    assert said[0] == said[1] and said[2] == said[3]
    assert [a["token_ids"] for a in said[0]] == [a["token_ids"] for a in said[2]]
    assert len({str(a["token_ids"]) for a in said[0][:4]}) == 4 and said[0][3]["logprobs"]["top_logprobs"][0]


def test_a_head_guesses_there_as_here(gpu, llmq, tmp_path):
    """Its embedding is the model's: on the device where it is dense, else looked up here."""
    head = ROOT / "tests/golden/mtp/qwen3.5"
    llmq("quantize", head, "-o", tmp_path / "q.llmq", "-m", "rtn", "--bits", 8, "--group-size", 16, "--embed", "u8-g16")
    for model in (head, tmp_path / "q.llmq"):
        args = ["run", model, "--ids", IDS, "-n", 24, "--ignore-eos", "--activations", "f32", "--kv-cache-dtype", "f32"]
        here = llmq.json(*args)
        there = gpu.json(*args, "--device", "cuda", "--speculative-mtp")
        assert there["ids"] == here["ids"] and there["speculation"]["right"] > 0.5 * there["speculation"]["guesses"] > 0
        p = gpu(*args, "--device", "cuda", "--gpu-layers", 1, "--speculative-mtp", code=3)
        assert "an MTP head of a model that is not all on one device" in p.stderr


@pytest.mark.parametrize("guess, what", [(["--speculative-mtp"], "MTP head"), (["--speculative-model", ROOT / "tests/golden/eagle3"], "EAGLE-3 draft")])
def test_auto_leaves_out_what_guesses_where_it_does_not_fit(gpu, tmp_path, guess, what):
    """From the least that the model takes: one line says so, the model is there and answers the same."""
    model, seen = ROOT / "tests/golden/mtp/mimo", set()
    run = ["run", model, "--ids", IDS, "-n", 8, "--ignore-eos", "--activations", "f32", "--kv-cache-dtype", "f32", "--max-model-len", 64]
    want = gpu.json(*run)["ids"]
    at = ["serve", model, *guess, "--max-model-len", 64, "--max-num-seqs", 2]
    whole = gpu.json(*at, "--device", "cuda", "--dry-run", env=emulated(1 << 30))
    most = sum(whole[f"gpu_{part}_bytes"] for part in ("weights", "draft", "kv", "step"))
    for size in range(most // 8, most * 2, most // 8):
        env = emulated(size)
        there = gpu(*run, "--json", *guess, "--device", "auto", env=env)
        got = json.loads(there.stdout)
        assert got["ids"] == want
        without = re.findall(rf"^device: the {what} does not guess \(.*\d+ free\)$", there.stderr, re.M)
        on = re.search(r"^device: (cpu|emulated)\b(?! \w).*$", there.stderr, re.M)[1]
        assert len(without) <= (on != "cpu")
        assert ("speculation" in got) == (not without)
        seen.add((on, bool(without)))
        dry = gpu(*at, "--device", "auto", "--dry-run", "--json", env=env)
        served = serve(gpu, tmp_path / "log", env, *at[1:], "--device", "auto")
        assert served.returncode == 0, served.stderr
        devices = [re.findall(r"^(device: (?!emulated$)[^(]*) \(.*\d+ free\)$", p.stderr, re.M) for p in (dry, served)]
        assert devices[0] == devices[1]
        assert json.loads(dry.stdout).get("gpu_draft_bytes", 0) == (0 if devices[1] else whole["gpu_draft_bytes"])
    assert seen == {("cpu", False), ("emulated", True), ("emulated", False)}, seen


@pytest.mark.parametrize("where, seen", [
    (["--gpu-layers", "auto"], {"none", "cpu", "part", "all"}), (["--device", "auto"], {"none", "cpu", "all"}),
    (["--device", "auto", "--gpu-layers", "auto"], {"none", "cpu", "part", "all"})], ids=["shared", "auto", "both"])
def test_a_draft_is_where_a_dry_run_says(gpu, tmp_path, where, seen):
    """On the model's GPU, in part where the model shares it, or on the CPU; the draft alone is never there."""
    args = [NOVELS, *where, "--max-num-seqs", 4, "--max-model-len", 256, "--speculative-model", NOVELS]
    got = set()
    for size in (40, 66, 115, 119, 122, 135):
        env = emulated(size * 10**6)
        dry, served = gpu("serve", *args, "--dry-run", "--json", code=None, env=env), serve(gpu, tmp_path / "log", env, *args)
        assert dry.returncode == served.returncode
        if dry.returncode:
            assert dry.stderr.splitlines()[-1] == served.stderr.splitlines()[-1]
            got.add("none")
            continue
        said = json.loads(dry.stdout)
        ready = re.search(r"^ready: .* context (\d+), (\d+) KV blocks of 16 .* device (cpu|emulated)(?:, (\d) of 6 layers)?,", served.stderr, re.M)
        assert [int(ready[1]), int(ready[2])] == [said["max_len"], said["kv_blocks"]]
        there = said.get("gpu_layers", 0)
        assert there == (0 if ready[3] == "cpu" else int(ready[4] or 6))
        notes = [re.findall(r"^.*: the draft runs on the CPU: .*$", p.stderr, re.M) for p in (dry, served)]
        assert notes[0] == notes[1]
        n = said.get("gpu_draft_layers", 0)
        assert n == 0 if notes[0] or not there else n > 0
        got.add("none" if not there else "cpu" if not n else "part" if n < 6 else "all")
    assert got == seen


@pytest.mark.parametrize("guess", [["--speculative-mtp"], ["--speculative-model", ROOT / "tests/golden/eagle3"]])
@pytest.mark.parametrize("part", [["--gpu-layers", 1], ["--tensor-parallel-size", 2]])
def test_a_dry_run_refuses_what_guesses_beside_a_part(gpu, guess, part):
    for more in (["--dry-run"], ["--port", 0]):
        p = gpu("serve", ROOT / "tests/golden/mtp/mimo", *guess, *part, *more, code=3, env=devices(2))
        assert "of a model that is not all on one device" in p.stderr
        assert guess[0] in p.stderr or "--dry-run" in more, p.stderr


@pytest.mark.parametrize("more", [[], ["--speculative-ngram"]])
def test_a_grammar_holds_there_as_here(gpu, llmq, tmp_path, more):
    body = {"prompt": "It was", "max_tokens": 6, "return_token_ids": True}
    draws = [{"temperature": 1, "seed": 3, "structured_outputs": {"regex": " [a-f]{2}[0-9]{2}!"}},
             {"temperature": 0, "structured_outputs": {"choice": ["never", "nowhere"]}, "repetition_penalty": 1.5},
             {"temperature": 0, "bad_words": ["the", " the", "a", " a"]}]
    said = []
    for tool, device in ((gpu, "cuda"), (llmq, "cpu")):
        with Server(tool, ROOT / "models/novels-1m", "--device", device, "--activations", "f32", "--kv-cache-dtype",
                    "f32", *more, log=tmp_path / "log") as s:
            name = json.load(s.get("/v1/models"))["data"][0]["id"]
            said.append([s.post_json("/v1/completions", {"model": name, **body, **draw})["choices"][0] for draw in draws])
    assert [a["token_ids"] for a in said[0]] == [a["token_ids"] for a in said[1]]
    assert re.match(r" [a-f]{0,2}", said[0][0]["text"]) and said[0][1]["text"] in ("never", "nowhere")


@pytest.mark.parametrize("model, layers", [("qwen3-next", "all"), ("mamba2", "1"), ("lfm2", "2"), ("gemma4-ple", "4"), ("gemma3n", "4"), ("hy-v4", "2")])
def test_a_second_turn_answers_there_as_here(gpu, llmq, tmp_path, model, layers):
    """It goes on from the state, or the K and V, that the first one left at the last border of a block."""
    said = []
    for tool, device in ((gpu, ["--gpu-layers", layers]), (llmq, ["--device", "cpu"])):
        with Server(tool, ARCH / model, *device, "--activations", "f32", "--kv-cache-dtype", "f32", "--max-model-len", 128,
                    "--max-num-seqs", 4, log=tmp_path / "log") as s:
            body = {"model": json.load(s.get("/v1/models"))["data"][0]["id"], "max_tokens": 6, "temperature": 0,
                    "ignore_eos": True, "return_token_ids": True}
            ids, turns = [3 + i * i % 60 for i in range(37)], []
            for _ in range(2):
                a = s.post_json("/v1/completions", {**body, "prompt": ids})
                turns.append((a["choices"][0]["token_ids"], a["usage"]["prompt_tokens_details"]["cached_tokens"]))
                ids = ids + turns[-1][0] + [7, 8]
            said.append(turns)
    assert said[0] == said[1] and [n for _, n in said[0]] == [0, 32]


def test_a_lost_device_ends_requests_and_the_server(gpu, tmp_path):  # T-11
    lost = dict(os.environ, LLMQ_EMULATED_LAUNCHES="60")
    p = gpu("run", ARCH / "arcee", "--ids", IDS, "-n", "50", "--ignore-eos", "--device", "cuda", code=1, env=lost)
    assert "the device is lost" in p.stderr
    with Server(gpu, ARCH / "arcee", "--device", "cuda", log=tmp_path / "log", env=lost) as s:
        name = json.load(s.get("/v1/models"))["data"][0]["id"]
        body = {"model": name, "prompt": [3, 1, 4, 1, 5], "max_tokens": 50, "temperature": 0, "ignore_eos": True}
        r = s.post("/v1/completions", body)
        assert r.status == 500 and "the device is lost" in json.load(r)["error"]["message"]
        assert s.process.wait() == 1
    assert re.search(r"^llmq: serve: .*the device is lost", (tmp_path / "log").read_text(), re.M)


@pytest.mark.parametrize("model, part, args", [
    (ROOT / "models/novels-1m", 2, ["--device", "cuda"]),
    (ROOT / "models/novels-1m", 0.9, ["--device", "cuda", "--max-num-seqs", 4]),
    (ROOT / "models/novels-1m", 1.2, ["--device", "auto", "--max-num-seqs", 4, "--max-model-len", 128]),
    (ROOT / "models/novels-1m", 200, ["--device", "cuda", "--kv-cache-memory", "1M", "--max-num-seqs", 4]),  # cuBLAS has its part
    (NOVELS, 0.9, ["--gpu-layers", "auto", "--max-num-seqs", 4]),
    (NOVELS, 1.5, ["--gpu-layers", 2, "--max-num-seqs", 4]),
    (ROOT / "models/novels-1m", 0.9, ["--tensor-parallel-size", 2]),
    (ARCH / "qwen3-next", 2, ["--device", "cuda", "--max-num-seqs", 4]),
    (ARCH / "lfm2", 1.5, ["--gpu-layers", 1, "--max-num-seqs", 4]),
    (ARCH / "mamba2", 200, ["--device", "cuda", "--kv-cache-memory", "1M", "--max-num-seqs", 4, "--max-model-len", 256]),  # no K, no V
    (ARCH / "gemma4-ple", 2, ["--device", "cuda", "--max-num-seqs", 4]),  # K and V of another
    (ARCH / "gemma3n", 2, ["--device", "cuda", "--max-num-seqs", 4]),
    (ARCH / "gemma3n", 1.02, ["--device", "cuda", "--max-num-seqs", 4]),
    (ARCH / "hy-v4", 2, ["--device", "cuda", "--max-num-seqs", 4]),
    (ARCH / "hy-v4", 1.08, ["--device", "cuda", "--max-num-seqs", 4]),
    (ARCH / "hy-v4", 1.5, ["--gpu-layers", 2, "--max-num-seqs", 4]),
    (ARCH / "dots3-note", 2, ["--device", "cuda", "--max-num-seqs", 4]),  # latents of two sizes
    (ARCH / "dots3-note", 1.2, ["--gpu-layers", 2, "--max-num-seqs", 4]),
    (ARCH / "mistral-large4", 1.1, ["--device", "cuda", "--max-num-seqs", 4]),
    (ARCH / "axk2", 1.1, ["--device", "cuda", "--max-num-seqs", 4]),
    (ARCH / "minimax", 2, ["--device", "cuda", "--max-num-seqs", 4]),
    (ARCH / "minimax", 1.5, ["--gpu-layers", 2, "--max-num-seqs", 4]),
    (ARCH / "smallthinker", 1.5, ["--device", "cuda", "--max-num-seqs", 4]),
    (ARCH / "longcat-flash", 2, ["--device", "cuda", "--max-num-seqs", 4]),
    (ARCH / "longcat-flash", 1.5, ["--gpu-layers", 3, "--max-num-seqs", 4]),
    (ARCH / "glm5-next", 2, ["--device", "cuda", "--max-num-seqs", 4]),  # groups of positions
    (ARCH / "glm5-next", 1.5, ["--gpu-layers", 2, "--max-num-seqs", 4]),
    (ARCH / "step3.5", 1.5, ["--gpu-layers", 2, "--max-num-seqs", 4]),
    (ROOT / "tests/golden/mtp/qwen3.5", 2, ["--device", "cuda", "--max-num-seqs", 4, "--speculative-mtp"]),
    (ROOT / "tests/golden/mtp/deepseek-v3", 2, ["--device", "cuda", "--max-num-seqs", 4, "--speculative-mtp"]),
    (ROOT / "tests/golden/mtp/mimo", 2, ["--device", "cuda", "--speculative-model", ROOT / "tests/golden/eagle3"]),
    (NOVELS, 1.2, ["--device", "cuda", "--max-num-seqs", 4, "--speculative-model", ROOT / "models/novels-1m"]),
    (NOVELS, 1.2, ["--gpu-layers", 3, "--max-num-seqs", 4, "--speculative-model", ROOT / "models/novels-1m"]),
    (NOVELS, 1.6, ["--gpu-layers", 2, "--max-num-seqs", 2, "--max-model-len", 128, "--speculative-model", NOVELS]),
    (NOVELS, 0.9, ["--gpu-layers", "auto", "--max-num-seqs", 4, "--speculative-model", ROOT / "models/novels-1m"]),
    (NOVELS, 0.8, ["--device", "auto", "--max-num-seqs", 4, "--speculative-model", ROOT / "models/novels-1m"]),
])
def test_a_dry_run_says_what_the_server_then_has_on_a_gpu(gpu, tmp_path, model, part, args):  # T-17
    """Of a memory that has a step, and such a part of weights and cache as they are where there is enough."""
    env = {**emulated(1 << 30), "LLMQ_EMULATED_DEVICES": "2"}
    whole = gpu.json("serve", model, *args, "--dry-run", env=env)
    held = whole["gpu_weights_bytes"] + whole.get("gpu_draft_bytes", 0) + whole["gpu_kv_bytes"]
    size = int(whole["gpu_step_bytes"] + part * held)
    env["LLMQ_EMULATED_MEMORY"] = str(size)
    dry = gpu.json("serve", model, *args, "--dry-run", env=env)
    draft = dry.get("gpu_draft_bytes", 0)
    assert (draft > 0) == any("--speculative" in str(a) for a in args)
    assert dry["gpu_weights_bytes"] + draft + dry["gpu_kv_bytes"] + dry["gpu_step_bytes"] <= dry["gpu_memory_bytes"] <= size
    text = gpu("serve", model, *args, "--dry-run", env=env).stdout
    assert re.search(rf"^GPU: weights .*{dry['gpu_layers']} layers on emulated", text, re.M)
    with Server(gpu, model, *args, log=tmp_path / "log", env=env) as s:
        ready = re.search(r"^ready: .* context (\d+), (\d+) KV blocks of 16 .* device emulated(?:, (\d) of \d layers)?(?: x (\d))?,", s.output(), re.M)
    assert [int(ready[1]), int(ready[2])] == [dry["max_len"], dry["kv_blocks"]]
    assert [int(ready[3] or dry["gpu_layers"]), int(ready[4] or 1)] == [dry["gpu_layers"], dry["gpus"]]


@pytest.mark.parametrize("args", [[], ["--max-model-len", 1024]])
@pytest.mark.parametrize("size", [1_000_000, 20_000_000, 24_700_000])
def test_a_dry_run_refuses_what_the_server_refuses_on_a_gpu(gpu, size, args):
    model = [ROOT / "models/novels-1m", "--device", "cuda", *args]
    dry = gpu("serve", *model, "--dry-run", code=1, env=emulated(size))
    served = gpu("serve", *model, "--port", 0, code=1, env=emulated(size))
    assert dry.stderr.splitlines()[-1] == served.stderr.splitlines()[-1]
    auto = gpu("serve", model[0], "--device", "auto", *args, "--dry-run", env=emulated(size))
    assert re.search(r"^device: cpu \(", auto.stderr, re.M) and "GPU" not in auto.stdout


COUNTED = [("experts' groups, routers", "mixtral-moe"), ("biases", "gpt2"), ("a convolution's biases, heads' vectors", "mamba2"),
           ("factors of latent attention", "deepseek-v2-mla"), ("small products beside a state", "qwen3.5"),
           ("projections of a narrow embedding", "opt-350m-postnorm"), ("no output head", "../heads/xlm-roberta"),
           ("addends of distances", "../heads/mpnet"), ("vectors of types", "../heads/gte")]


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("why, name", COUNTED, ids=[x[1] for x in COUNTED])
def test_a_dry_run_counts_weights_to_the_byte(gpu, why, name, n):
    """Both say how much is free of what is just too little."""
    model, env = [ARCH / name, "--device", "cuda", "--tensor-parallel-size", n], devices(n)
    need = gpu.json("serve", *model, "--dry-run", env=env)
    env["LLMQ_EMULATED_MEMORY"] = str(need["gpu_weights_bytes"] + need["gpu_step_bytes"] - 400)
    dry, served = (gpu("serve", *model, *more, code=1, env=env).stderr.splitlines()[-1] for more in (["--dry-run"], ["--port", 0]))
    assert dry == served and " free; " in dry


@pytest.mark.parametrize("args", [
    [ROOT / "tests/golden/mtp/deepseek-v3", "--speculative-mtp"],
    [ROOT / "tests/golden/mtp/mimo", "--speculative-model", ROOT / "tests/golden/eagle3"],
    [ARCH / "arcee", "--speculative-model", ARCH / "arcee"]], ids=["an MTP head", "an EAGLE-3 draft", "a smaller model"])
def test_a_dry_run_counts_a_draft_to_the_byte(gpu, args):
    """Its projection of two states, too, and what opening the GPU once more for it takes."""
    need = gpu.json("serve", *args, "--device", "cuda", "--dry-run", env=devices(1))
    size = need["gpu_weights_bytes"] + need["gpu_draft_bytes"] + need["gpu_step_bytes"] - 400
    env = {**devices(1), "LLMQ_EMULATED_MEMORY": str(size)}
    dry, served = (gpu("serve", *args, "--device", "cuda", *more, code=1, env=env).stderr.splitlines()[-1]
                   for more in (["--dry-run"], ["--port", 0]))
    assert dry == served and " free; " in dry


def test_a_dry_run_refuses_a_draft_that_has_no_room_beside_its_model(gpu):
    model = [ARCH / "arcee", "--speculative-model", ROOT / "models/novels-1m", "--device", "cuda"]
    dry, served = (gpu("serve", *model, *more, code=1, env=emulated(1_000_000)).stderr.splitlines()[-1]
                   for more in (["--dry-run"], ["--port", 0]))
    assert dry == served and "the weights need " in dry


@pytest.mark.parametrize("name, args, want", [
    ("NVIDIA H100 80GB HBM3", ["--device", "cuda"], (3350e9, 989e12)), ("emulated", ["--device", "cuda"], None),
    ("NVIDIA H100 80GB HBM3", ["--gpu-layers", 3], None), ("NVIDIA H100 80GB HBM3", ["--tensor-parallel-size", 2], (6700e9, 1978e12))])
def test_metrics_have_the_limits_of_a_known_gpu_and_no_zeros(gpu, tmp_path, name, args, want):
    env = {"LLMQ_EMULATED_NAME": name, "LLMQ_EMULATED_DEVICES": "2"}
    with Server(gpu, NOVELS, *args, log=tmp_path / "log", env=env) as s:
        said = dict(re.findall(r"^llmq:limit_(read_bytes|flops)_per_second\{[^}]*\} (\S+)$", s.get("/metrics").read().decode(), re.M))
    assert (tuple(float(said[k]) for k in ("read_bytes", "flops")) if said else None) == want


def test_metrics_have_the_limits_of_the_cpu_where_a_gpu_does_not_do(gpu, tmp_path):
    with Server(gpu, NOVELS, "--device", "auto", log=tmp_path / "log", env={"LLMQ_EMULATED_MEMORY": "20000"}) as s:
        said = re.findall(r"^llmq:limit_\w+\{[^}]*\} (\S+)$", s.get("/metrics").read().decode(), re.M)
    assert len(said) == 2 and min(map(float, said)) > 1e8
