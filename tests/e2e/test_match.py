"""quantize --match: layers make up for what quantizing changed in the layers before them."""
import json
import pathlib

import pytest

from test_quantize import digest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXT = ROOT / "tests/golden/text/calib-novels.txt"
HELD_OUT = ROOT / "tests/golden/text/novels-heldout-100w.txt"


def quantize(llmq, src, out, *more, samples=32, length=512):
    return llmq.json("quantize", src, "-o", out, "--calib", TEXT, "--calib-samples", samples, "--calib-len", length, "--embed", "keep",
                     "--lm-head", "keep", "--no-check", *more)


@pytest.mark.parametrize("method", [["gptq", "--bits", "3"], ["gptq", "--bits", "3", "--no-fold"], ["gptq", "--bits", "2", "-g", "32"],
                                    ["auto", "--bits", "3", "--tune", "0"]], ids=" ".join)
def test_text_that_was_not_seen_is_nearer_to_the_originals_answers(llmq, draft, tmp_path, method):
    kl = {}
    for how in ("--match", "--no-match"):
        out = tmp_path / f"q{how}.llmq"
        quantize(llmq, draft, out, "-m", *method, how)
        kl[how] = llmq.json("eval", out, "-t", HELD_OUT, "-c", "512", "--windows", "12", "--ref", draft)["kl_mean"]
        assert llmq.json("inspect", out)["recipe"]["match"] == (how == "--match")
    assert kl["--match"] < 0.9 * kl["--no-match"], kl


def test_it_is_what_is_done_unasked_and_other_methods_refuse_it(llmq, draft, tmp_path):
    small = {"samples": 8, "length": 64}
    quantize(llmq, draft, tmp_path / "a", "-m", "gptq", **small)
    quantize(llmq, draft, tmp_path / "b", "-m", "gptq", "--match", **small)
    quantize(llmq, draft, tmp_path / "c", "-m", "gptq", "--no-match", **small)
    assert digest(tmp_path / "a") == digest(tmp_path / "b") != digest(tmp_path / "c")
    p = llmq("quantize", draft, "-o", tmp_path / "d", "-m", "awq", "--match", code=2)
    assert "--match" in p.stderr and "awq" in p.stderr
    llmq("quantize", draft, "-o", tmp_path / "s", "-m", "gptq", "--stats-only", "--calib", TEXT, "--calib-samples", "8", "--calib-len", "64")
    by = ["quantize", draft, "-o", tmp_path / "e", "-m", "gptq", "--stats", tmp_path / "s", "--calib", TEXT, "--calib-samples", "8",
          "--calib-len", "64"]
    assert "--match: nothing goes through quantized layers with --stats" in llmq(*by, "--match", code=2).stderr
    llmq(*by)
    assert llmq.json("inspect", tmp_path / "e")["recipe"]["match"] is False


def test_a_model_without_layers_of_that_kind_refuses_it_and_says_so(llmq, tmp_path):
    src, ids = ROOT / "tests/golden/arch/mixtral-moe", tmp_path / "text.ids"
    ids.write_text(" ".join(str(i * 7919 % 64) for i in range(1024)))
    args = ["quantize", src, "-m", "gptq", "-g", "16", "--calib", ids, "--calib-samples", "8", "--calib-len", "32", "--no-check"]
    assert "--match: expected layers of attention and a dense MLP" in llmq(*args, "--match", "-o", tmp_path / "q", code=2).stderr
    llmq(*args, "-o", tmp_path / "q")
    llmq(*args, "--no-match", "-o", tmp_path / "n")
    assert llmq.json("inspect", tmp_path / "q")["recipe"]["match"] is False and digest(tmp_path / "q") == digest(tmp_path / "n")


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "olmo2", "granite", "qwen2", "phi3", "bloom-alibi", "qwen2-moe-shared", "deepseek-v2-mla", "gemma3n"])
def test_every_kind_of_join_and_layer_is_gone_through(llmq, tmp_path, name):
    """Norms after branches, factors of the residual, parallel branches, experts, MLA: those that cannot be matched go along."""
    src = ROOT / "tests/golden/arch" / name
    ids = tmp_path / "text.ids"
    vocab = json.loads((src / "config.json").read_text()).get("vocab_size", 64)
    ids.write_text(" ".join(str(i * 7919 % min(vocab, 64)) for i in range(4096)))
    args = ["quantize", src, "-m", "gptq", "-g", "16", "--calib", ids, "--calib-samples", "48", "--calib-len", "32", "--no-check"]
    found = {}
    for threads in (1, 3):
        llmq(*args, "--threads", threads, "-o", tmp_path / f"q{threads}.llmq")
        found[threads] = digest(tmp_path / f"q{threads}.llmq")
    assert found[1] == found[3]
