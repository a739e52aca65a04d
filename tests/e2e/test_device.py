"""--device on a machine with one GPU: llmq with the CUDA kernels compiled for the host in its place."""
import json
import os
import re
import struct

import pytest

from harness import ROOT, Llmq, Server

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


def test_version_names_it(gpu):
    assert re.search(r"cuda:0 emulated", gpu.json("version")["devices"])


@pytest.mark.parametrize("word", ["cuda", "cuda:0", "auto"])
def test_a_packed_model_gives_the_cpus_logits_within_rounding(gpu, llmq, dense, tmp_path, word):
    want, _ = logits(llmq, dense, tmp_path / "cpu", "--device", "cpu")
    got, said = logits(gpu, dense, tmp_path / "gpu", "--device", word)
    top = max(map(abs, want))
    assert 0 < max(abs(a - b) for a, b in zip(want, got)) <= 5e-6 * top
    assert ("device: emulated" in said) == (word == "auto"), said


def test_on_the_cpu_it_gives_the_cpus_bytes(gpu, llmq, dense, tmp_path):
    assert logits(gpu, dense, tmp_path / "a", "--device", "cpu")[0] == logits(llmq, dense, tmp_path / "b")[0]


@pytest.mark.parametrize("arch, what", [("deepseek-v3", "heads of this size")])
def test_what_is_not_there_is_refused_by_name_and_left_to_the_cpu(gpu, llmq, tmp_path, arch, what):
    p = gpu("logits", ARCH / arch, "--ids", IDS, "-o", tmp_path / "no", "--device", "cuda", code=3)
    assert re.fullmatch(r"llmq: logits: [^\n]*not on cuda yet: [^\n]+\n", p.stderr) and what in p.stderr
    assert not (tmp_path / "no").exists()
    got, said = logits(gpu, ARCH / arch, tmp_path / "gpu", "--device", "auto")
    assert got == logits(llmq, ARCH / arch, tmp_path / "cpu")[0]
    assert re.search(r"^device: cpu \(not on cuda yet: .*" + re.escape(what), said, re.M), said


def test_other_words_are_refused(gpu, dense, tmp_path):
    model = ["logits", dense, "--ids", IDS, "-o", tmp_path / "no", "--device"]
    for word, code, says in [("cuda:1", 1, "cuda:1: expected 0..0"), ("cuda:x", 2, "cuda:NUMBER"), ("tpu", 2, "tpu")]:
        assert says in gpu(*model, word, code=code).stderr
    assert "--activations int8" in gpu(*model, "cuda", "--activations", "int8", code=3).stderr
    assert "device: cpu (not on cuda yet: --activations int8)" in \
        gpu(*model, "auto", "--activations", "int8").stderr
    for command in [["bench", "kernels"], ["bench", "attention"], ["plan", dense]]:
        assert "not on cuda yet" in gpu(*command, "--device", "cuda", code=3).stderr


def test_a_model_that_does_not_fit_says_so(gpu, llmq, dense, tmp_path):  # T-21
    small = dict(os.environ, LLMQ_EMULATED_MEMORY="20000")
    p = gpu("logits", dense, "--ids", IDS, "-o", tmp_path / "no", "--device", "cuda", code=1, env=small)
    assert re.search(r"the weights need \d+ bytes, found \d+ free", p.stderr), p.stderr
    got, said = logits(gpu, dense, tmp_path / "gpu", "--device", "auto", env=small)
    assert got == logits(llmq, dense, tmp_path / "cpu")[0]
    assert "device: cpu (emulated: the weights need" in said


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
